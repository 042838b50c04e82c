"""What a load's first seconds lose on a deployment that has just started, or has idled.

The same prompts, several at once, on deployments with different pasts, each with a state folder of its own: just
started; after other prompts (`warmed`, and the same again, `warmed, again`); after those and a pause; after other
prompts without drafts. Texts must be equal. Each request's tokens/s are paired with the same request's on the warmed
deployment, and the tokens/s of the first ten seconds block by block.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence as Listed
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from statistics import fmean
from typing import Any

from app.config import Settings
from bench.help import count
from bench.load.client import ask
from bench.load.report import Served
from bench.prompts import Prompts, add_prompts_file
from bench.report_header import add_out, heading, write_report
from bench.stats import paired_ratio
from bench.systems import start_server, stop_server

WARMED = "warmed"
PASTS = ("just started", WARMED, "warmed, again", "after a pause", "after a phase without drafts")
EARLY_S = 10.0


class Run:
    """One measurement: the requests as their clients met them, in the order of the prompts, and the seconds of all."""

    def __init__(self, served: Listed[Served], seconds: float) -> None:
        self.seconds, self.served = seconds, served
        self.texts = [one.token_ids for one in served]
        self.tokens = sum(map(len, self.texts))
        self.tokens_per_s = self.tokens / seconds

    @property
    def early_tokens_per_s(self) -> float:
        """Return the tokens/s of the first EARLY_S, or of the whole run if that is shorter.

        Of a request that goes on then, tokens are counted by the share of its characters that has come.
        """
        until_s = min(EARLY_S, self.seconds)
        return sum(len(one.token_ids) * _share_by(until_s, one) for one in self.served) / until_s


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the scenario's flags."""
    parser.add_argument("--prompts", type=count, default=24, help="measured of each block, and as many before them")
    parser.add_argument("--blocks", type=count, default=2, help="turns of each past, with other prompts")
    parser.add_argument("--streams", type=count, default=4, help="requests at once")
    parser.add_argument("--max-tokens", type=count, default=48, help="tokens a request")
    parser.add_argument("--pause-s", type=float, default=60.0, help="of `after a pause`")
    parser.add_argument("--pasts", nargs="+", choices=PASTS, default=[*PASTS], help="only these; `warmed` always")
    add_out(parser, "start")
    add_prompts_file(parser)


def main(args: argparse.Namespace, argv: Listed[str] | None) -> int:
    """Measure every past in turn, print, write the figures; return 0 if all texts were equal."""
    texts, size = interleaved(args.texts), args.prompts
    if 2 * args.blocks * size > len(texts):
        raise SystemExit(f"{2 * args.blocks * size} prompts are needed, none twice: fewer blocks or prompts")
    pasts = [past for past in PASTS if past == WARMED or past in args.pasts]
    runs: dict[str, list[Run]] = {past: [] for past in pasts}
    for block in range(args.blocks):
        asked, others = texts[2 * block * size :][:size], texts[(2 * block + 1) * size :][:size]
        turn = block % len(pasts)
        for past in (*pasts[turn:], *pasts[:turn]):
            runs[past].append(measure(past, asked, others, args))
            print(f"block {block}, {past}: {runs[past][-1].tokens_per_s:.1f} tokens/s", flush=True)
    wrong = sum(a.texts != b.texts for own in runs.values() for a, b in zip(own, runs[WARMED], strict=True))
    found = {past: figures(own, runs[WARMED]) for past, own in runs.items()}
    report = {**heading("bench load", argv), "pause_s": args.pause_s, "wrong": wrong, "pasts": found}
    write_report(args.out, report)
    for past, own in found.items():
        print(f"{past}: {own}")
    print(f"{wrong} runs with other texts")
    return 1 if wrong else 0


def interleaved(texts: Prompts) -> list[str]:
    """Return all prompts, the domains in turn."""
    return [text for row in zip_longest(*texts.values()) for text in row if text is not None]


def measure(past: str, asked: Listed[str], others: Listed[str], args: argparse.Namespace) -> Run:
    """Start a deployment, give it its past, and measure the prompts on it."""
    with tempfile.TemporaryDirectory() as folder:
        url = start_server(PACELINE_STATE=folder)
        try:
            if past != PASTS[0]:
                ask_all(url, others, args, speculation="without drafts" not in past)
            if "pause" in past:
                time.sleep(args.pause_s)
            return ask_all(url, asked, args)
        finally:
            stop_server(PACELINE_STATE=folder)


def ask_all(url: str, texts: Listed[str], args: argparse.Namespace, *, speculation: bool = True) -> Run:
    """Send all prompts, so many at once. Raises SystemExit where one fails."""
    api_key, started_s = Settings.from_env().api_key, time.monotonic()

    def one(text: str) -> Served:
        wish = {"prompt": text, "max_tokens": args.max_tokens, "speculation": speculation}
        served = ask(url, wish, started_s, api_key, domain="")
        if served.error is not None:
            raise SystemExit(f"a request failed: {served.error}")
        return served

    with ThreadPoolExecutor(args.streams) as pool:
        return Run([*pool.map(one, texts)], time.monotonic() - started_s)


def figures(own: Listed[Run], warmed: Listed[Run]) -> dict[str, Any]:
    """Return a past's figures over all blocks; a ratio of the first seconds is None where nothing had come by then."""
    rounds = sum(one.rounds for run in own for one in run.served)
    early, warmed_early = ([run.early_tokens_per_s for run in runs] for runs in (own, warmed))
    paces, warmed_paces = (
        [len(one.token_ids) / one.total_s for run in runs for one in run.served] for runs in (own, warmed)
    )
    return {
        "tokens_per_s": round(fmean(run.tokens_per_s for run in own), 2),
        "by_block": [round(run.tokens_per_s, 2) for run in own],
        "seconds": [round(run.seconds, 2) for run in own],
        "tokens_a_round": round(sum(run.tokens for run in own) / rounds, 3),
        "first_seconds_tokens_per_s": [round(pace, 2) for pace in early],
        "first seconds over warmed": (
            paired_ratio(early, warmed_early).asdict() if all((*early, *warmed_early)) else None
        ),
        "over warmed": paired_ratio(paces, warmed_paces).asdict(),
    }


def _share_by(at_s: float, one: Served) -> float:
    """Return the share of a text's characters that had come by then."""
    whole = sum(count for _, count in one.pieces)
    return sum(count for came_s, count in one.pieces if came_s <= at_s) / whole if whole else 0.0
