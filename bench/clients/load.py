"""`./paceline bench load`: send requests at realistic times and report what clients see.

Sends prompts of five domains to a deployment (its own, or a running one at --url) at Poisson,
bursty, rising and falling or recorded times, or a fixed number at once. Reports time to first
token, time a token, all of it (p50, p95, p99), tokens/s, goodput under an objective, acceptance,
draft waste, and of an instance of its own the busy fraction of each kind of process and how far
each verifier's expected costs were off. With several --arms the same arrivals are run for each, in
turn.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Listed
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from app.config import ROOT, Settings
from app.counters import series
from app.errors import InvalidRequest, PacelineError
from app.local.client import generate
from app.local.instance import Instance
from app.metrics import BUSY, GROUP
from app.policy import Policy
from app.request import GenerateRequest
from bench.chaos.deployment import Site, enter
from bench.clients.arrivals import (
    Arrival,
    gamma,
    poisson,
    ramp,
    steps,
    trace,
)
from bench.clients.load_report import Served, Slo, draw, figures, table
from bench.help import parser as parser_of
from bench.prompts import PROMPTS, Prompts, add_prompts_file
from bench.report_header import heading
from bench.systems import INSTANCE, start_server, stop_server

KINDS = ("poisson", "gamma", "ramp", "steps", "closed", "trace")
FILLER = "Here is what was said before: the ships left early, and nobody saw them go. "  # makes a prompt longer
TOKENS_A_FILLER = 17
UNSTEERED = "unsteered"
ARMS: dict[str, dict[str, Any]] = {
    "on": {"speculation": True},
    "off": {"speculation": False},
    UNSTEERED: {"speculation": True},
}
ARMS_HELP = "speculation on, off, and on under the first policy, with beat frozen"
REPORTED_S = 1.5  # until each process has written its counters with a heartbeat
FOLLOWED_S = 2.0  # until a tick that was under way has ended, and until verifiers follow a policy


def main(argv: Listed[str] | None = None) -> int:
    """Run the loads, print, write figures and picture; return the exit status."""
    args = parse_args(argv)
    try:
        loads = {rate: arrivals(args, rate) for rate in args.rate}
    except InvalidRequest as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 2
    found: dict[str, Any] = {
        **heading("bench load", argv),
        "loads": [],
    }
    new = count()
    with deployment(args.url) as (url, is_own):
        for rate, load in loads.items():
            for arm in args.arms:
                with first_policy() if arm == UNSTEERED else nullcontext():
                    busy_s, closed_s = _busy_s() if is_own else {}, args.seconds if args.arrivals == "closed" else 0.0
                    served, seconds = run(url, load, arm, new, args.texts, closed_s)
                own = figures(served, seconds, args.slo) | {"rate": rate, "arm": arm}
                if is_own:
                    own["busy"] = _busy(busy_s, seconds)
                    own["cost_errors"] = {
                        node.name: node.info["cost_errors"] for node in own_site().deployment.nodes.live("verify")
                    }
                found["loads"].append(own)
                print(table([own]), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    draw(found["loads"], args.out.with_suffix(".png"))
    print(table(found["loads"]))
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench load", __doc__)
    parser.add_argument("--url", help="a running instance (default: one of its own, started and stopped)")
    parser.add_argument("--arrivals", choices=KINDS, default="poisson", help="how requests come")
    parser.add_argument("--rate", type=float, nargs="+", default=[1.0], help="requests a second; one load for each")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 5.0, 0.5], help="of ramp and steps, in turn")
    parser.add_argument("--variation", type=float, default=3.0, help="of gamma's gaps: 1 is Poisson")
    parser.add_argument(
        "--trace", type=Path, help="CSV or JSON lines of timestamp, prompt_tokens, output_tokens, or as in lab/data"
    )
    parser.add_argument("--speed", type=float, default=1.0, help="how much faster than it was a trace is replayed")
    parser.add_argument("--streams", type=int, default=8, help="of closed: requests at once, each followed by the next")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long requests come")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens a request")
    parser.add_argument("--arms", nargs="+", choices=sorted(ARMS), default=["on", "off"], help=ARMS_HELP)
    parser.add_argument("--slo-ttft-s", type=float, default=2.0, help="objective: time to first token")
    parser.add_argument("--slo-tpot-s", type=float, default=0.15, help="objective: time of each further token")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "load.json", help="file to write")
    add_prompts_file(parser)
    args = parser.parse_args(argv)
    if args.arrivals == "trace" and args.trace is None:
        parser.error("--arrivals trace needs --trace FILE")
    if min(args.rate) <= 0.0 or args.seconds <= 0.0 or args.speed <= 0.0 or args.variation <= 0.0:
        parser.error("rates, times, speed and variation are more than 0")
    if args.arrivals in ("ramp", "steps") and (len(args.rates) < 2 or min(args.rates) < 0.0 or not any(args.rates)):
        parser.error("--rates takes at least two rates, none below 0, not all 0")
    if args.url is not None and UNSTEERED in args.arms:
        parser.error("the arm unsteered freezes beat: it wants an instance of its own, without --url")
    args.slo = Slo(args.slo_ttft_s, args.slo_tpot_s)
    return args


def arrivals(args: argparse.Namespace, rate: float) -> list[Arrival]:
    """Make the load that the arguments ask for. Raises InvalidRequest for a bad trace."""
    match args.arrivals:
        case "poisson":
            return poisson(rate, args.seconds, args.max_tokens, args.seed)
        case "gamma":
            return gamma(rate, args.seconds, args.max_tokens, args.seed, args.variation)
        case "ramp":
            return ramp(args.rates, args.seconds, args.max_tokens, args.seed)
        case "steps":
            return steps(args.rates, args.seconds, args.max_tokens, args.seed)
        case "trace":
            return trace(args.trace, args.speed)
        case _:
            return [Arrival(0.0, args.max_tokens)] * args.streams


def run(
    url: str,
    load: Listed[Arrival],
    arm: str,
    new: "count[int]",
    prompts: Prompts = PROMPTS,
    closed_s: float = 0.0,
) -> tuple[list[Served], float]:
    """Send the load and wait for its end; return each request as its client met it, and the seconds
    all took.

    One thread a request. `new`: numbers of requests not used before. In a closed loop each request is followed by
    another for `closed_s`. Raises what a thread raised: a load whose requests were never sent measures nothing.
    """
    served: list[Served] = []
    errors: list[Exception] = []
    started = time.monotonic()
    api_key = Settings.from_env().api_key

    def follow(arrival: Arrival, number: int) -> None:
        try:
            served.append(ask(url, arrival, number, prompts, arm, started, api_key))
            while time.monotonic() - started < closed_s:
                served.append(ask(url, arrival, next(new), prompts, arm, started, api_key))
        except Exception as error:
            errors.append(error)

    threads = []
    for arrival in load:
        time.sleep(max(0.0, started + arrival.at_s - time.monotonic()))
        threads.append(threading.Thread(target=follow, args=(arrival, next(new))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return served, time.monotonic() - started


def ask(
    url: str, arrival: Arrival, number: int, prompts: Prompts, arm: str, started: float, api_key: SecretStr | None
) -> Served:
    """Send one request and follow it to its end; times are seconds since `started` (monotonic)."""
    domain, text = prompt(number, arrival.prompt_tokens, prompts)
    repeated = is_repeated(number, prompts)
    request = GenerateRequest.model_validate({"prompt": text, "max_tokens": arrival.output_tokens, **ARMS[arm]})
    seen_s: list[float] = []
    sent_s = time.monotonic() - started
    try:
        result = generate(url, request, lambda _: seen_s.append(time.monotonic() - started), api_key)
    except PacelineError as error:
        return Served(domain, sent_s, time.monotonic() - started, error=str(error), is_repeated=repeated)
    return Served(
        domain,
        sent_s,
        time.monotonic() - started,
        first_s=seen_s[0] if seen_s else None,
        tokens=len(result.token_ids),
        rounds=result.speculation.rounds,
        drafted=result.speculation.drafted,
        accepted=result.speculation.accepted,
        error=result.error,
        is_repeated=repeated,
    )


def prompt(number: int, tokens: int | None, prompts: Prompts = PROMPTS) -> tuple[str, str]:
    """Return (domain, text) of the n-th request: the domains in turn, no text twice, about `tokens`
    long.

    Once a domain's prompts are used up they come again, with another number behind them.
    """
    domains = [*prompts]
    domain = domains[number % len(domains)]
    of_domain = prompts[domain]
    text = f"{of_domain[number // len(domains) % len(of_domain)]} (Question {number}.)"
    return domain, FILLER * ((tokens or 0) // TOKENS_A_FILLER) + text


def is_repeated(number: int, prompts: Prompts = PROMPTS) -> bool:
    """Tell whether the n-th request's prompt was asked before, but for the number behind it."""
    domains = [*prompts]
    return number // len(domains) >= len(prompts[domains[number % len(domains)]])


@contextmanager
def deployment(url: str | None) -> Iterator[tuple[str, bool]]:
    """Yield the URL of the instance to load, and whether it is started and stopped here: where no URL is given."""
    if url is not None:
        yield url.rstrip("/"), False
        return
    try:
        yield start_server(), True
    finally:
        stop_server()


def own_site() -> Site:
    """Open the instance that `deployment` started."""
    settings = Settings.from_env()
    return enter(Instance(settings.state, INSTANCE), settings, seed=0)


@contextmanager
def first_policy() -> Iterator[None]:
    """Let the first policy hold: beat is frozen meanwhile, so that nothing steers."""
    site = own_site()
    frozen = site.signal("beat", signal.SIGSTOP)
    try:
        time.sleep(FOLLOWED_S)
        nodes = site.deployment.nodes
        nodes.set_policy(Policy(version=nodes.policy().version + 1))
        time.sleep(FOLLOWED_S)
        yield
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


def _busy_s() -> dict[str, float]:
    """Return the seconds that the instance's processes have worked so far, by kind."""
    found = {series(name): sums for name, sums in own_site().deployment.shared_stats.load(GROUP).items()}
    return {key[1][0]: sums[0] for key, sums in found.items() if key is not None and key[0] == BUSY.name}


def _busy(before_s: dict[str, float], took_s: float) -> dict[str, float]:
    """Return the busy fraction of each kind of process since then, as a mean over its processes."""
    time.sleep(REPORTED_S)
    nodes = Counter(node.kind for node in own_site().deployment.nodes.live())
    worked_s = {kind: now_s - before_s.get(kind, 0.0) for kind, now_s in _busy_s().items()}
    return {kind: round(worked_s[kind] / (took_s * nodes[kind]), 3) for kind in worked_s if nodes[kind]}


if __name__ == "__main__":
    sys.exit(main())
