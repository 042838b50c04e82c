"""Send the requests of a load, each from a thread of its own."""

import time
from collections.abc import Sequence as Listed
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from pydantic import SecretStr

from app.config import Settings
from app.errors import PacelineError
from app.local.client import generate
from app.request import GenerateRequest
from bench.load.arrivals import Arrival
from bench.load.report import Served
from bench.prompts import PROMPTS, Prompts

FILLER = "Here is what was said before: the ships left early, and nobody saw them go. "  # makes a prompt longer
TOKENS_A_FILLER = 17
UNSTEERED = "unsteered"
ARMS: dict[str, dict[str, Any]] = {
    "on": {"speculation": True},
    "off": {"speculation": False},
    UNSTEERED: {"speculation": True},
}


def run(
    url: str,
    load: Listed[Arrival],
    arm: str,
    new: "count[int]",
    prompts: Prompts = PROMPTS,
    closed_s: float = 0.0,
) -> tuple[list[Served], float]:
    """Send the load and wait for its end; return each request as its client met it, and the seconds of all.

    `new`: numbers of requests not used before. In a closed loop each request is followed by another for `closed_s`.
    Raises what a thread raised.
    """
    started_s = time.monotonic()
    api_key = Settings.from_env().api_key

    def send(arrival: Arrival, number: int) -> Served:
        domain, text = prompt(number, arrival.prompt_tokens, prompts)
        wish = {"prompt": text, "max_tokens": arrival.output_tokens, **ARMS[arm]}
        return ask(url, wish, started_s, api_key, domain=domain, is_repeated=is_repeated(number, prompts))

    def follow(arrival: Arrival, number: int) -> list[Served]:
        served = [send(arrival, number)]
        while time.monotonic() - started_s < closed_s:
            served.append(send(arrival, next(new)))
        return served

    with ThreadPoolExecutor(max(1, len(load))) as pool:
        clients = []
        for arrival in load:
            time.sleep(max(0.0, started_s + arrival.at_s - time.monotonic()))
            clients.append(pool.submit(follow, arrival, next(new)))
        served = [one for client in clients for one in client.result()]
    return served, time.monotonic() - started_s


def ask(url: str, wish: dict[str, Any], started_s: float, api_key: SecretStr | None, **known: Any) -> Served:
    """Send one request and follow it to its end; `known`: further fields of what is returned."""
    pieces: list[tuple[float, int]] = []
    request = GenerateRequest.model_validate(wish)
    sent_s = time.monotonic() - started_s
    try:
        result = generate(url, request, lambda text: pieces.append((time.monotonic() - started_s, len(text))), api_key)
    except PacelineError as error:
        return Served(sent_s=sent_s, end_s=time.monotonic() - started_s, error=str(error), **known)
    return Served(
        sent_s=sent_s,
        end_s=time.monotonic() - started_s,
        first_s=pieces[0][0] if pieces else None,
        tokens=len(result.token_ids),
        rounds=result.speculation.rounds,
        drafted=result.speculation.drafted,
        accepted=result.speculation.accepted,
        error=result.error,
        token_ids=result.token_ids,
        pieces=tuple(pieces),
        **known,
    )


def prompt(number: int, tokens: int | None, prompts: Prompts = PROMPTS) -> tuple[str, str]:
    """Return domain and text of the n-th request: the domains in turn, no text twice, about `tokens` long.

    Once a domain's prompts are used up they come again, with another number behind them.
    """
    domains = [*prompts]
    domain = domains[number % len(domains)]
    of_domain = prompts[domain]
    text = f"{of_domain[number // len(domains) % len(of_domain)]} (Question {number}.)"
    return domain, FILLER * ((tokens or 0) // TOKENS_A_FILLER) + text


def is_repeated(number: int, prompts: Prompts = PROMPTS) -> bool:
    """Tell whether an earlier request had the n-th one's prompt, but for the number behind it."""
    domains = [*prompts]
    return number // len(domains) >= len(prompts[domains[number % len(domains)]])
