"""`./paceline bench start`: what a load's first seconds lose on a deployment that has just started, or has idled.

The same prompts, four at once, on deployments with different pasts, each with a state folder of its own: just
started; after other prompts (`warmed`, and the same again, `warmed, again`); after those and a pause; after other
prompts without drafts. Few enough prompts that they take some ten seconds. Texts must be equal; each request's
tokens/s are paired with the same request's on the warmed deployment. The first ten seconds of all requests together are
reported by themselves, paired block by block.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence as Listed
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from app.config import ROOT, Settings
from app.local.client import generate
from app.messages import Result
from app.request import GenerateRequest
from bench.help import parser as parser_of
from bench.prompts import Prompts, add_prompts_file
from bench.report_header import heading
from bench.stats import paired_ratio
from bench.systems import start_server, stop_server

WARMED = "warmed"
EARLY_S = 10.0  # of a load, by which a deployment is to be as fast as the warmed one
Pieces = list[tuple[float, int]]  # of a request's text: when each came, seconds since the load's start; its characters
PASTS = ("just started", WARMED, "warmed, again", "after a pause", "after a phase without drafts")


def main(argv: Listed[str] | None = None) -> int:
    """Measure every past in turn, print, write the figures; return 0 if all texts were equal."""
    args = parse_args(argv)
    texts = interleaved(args.texts)
    size = args.prompts
    runs: dict[str, list[Run]] = {past: [] for past in args.pasts}
    for block in range(args.blocks):
        asked, others = texts[2 * block * size :][:size], texts[(2 * block + 1) * size :][:size]
        for past in (*args.pasts[block % len(args.pasts) :], *args.pasts[: block % len(args.pasts)]):
            runs[past].append(measure(past, asked, others, args))
            print(f"block {block}, {past}: {runs[past][-1].tokens_per_s:.1f} tokens/s", flush=True)
    wrong = sum(a.texts != b.texts for own in runs.values() for a, b in zip(own, runs[args.pasts[0]], strict=True))
    found = {past: figures(own, runs[WARMED]) for past, own in runs.items()}
    report = {**heading("bench start", argv), "pause_s": args.pause_s, "wrong": wrong, "pasts": found}
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(found) + (f"\n{wrong} RUNS WITH OTHER TEXTS" if wrong else ""))
    return 1 if wrong else 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench start", __doc__)
    parser.add_argument("--prompts", type=int, default=24, help="measured of each block, and as many before them")
    parser.add_argument("--blocks", type=int, default=2, help="turns of each past, with other prompts")
    parser.add_argument("--streams", type=int, default=4, help="requests at once")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens a request")
    parser.add_argument("--pause-s", type=float, default=60.0, help="of `after a pause`")
    parser.add_argument("--pasts", nargs="+", choices=PASTS, default=PASTS, help="only these; `warmed` always")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "start.json", help="file to write")
    add_prompts_file(parser)
    args = parser.parse_args(argv)
    if min(args.prompts, args.blocks, args.streams, args.max_tokens, args.pause_s) <= 0:
        parser.error("numbers and times are more than 0")
    if 2 * args.blocks * args.prompts > sum(map(len, args.texts.values())):
        parser.error(f"{2 * args.blocks * args.prompts} prompts are needed, none twice: fewer blocks or prompts")
    args.pasts = tuple(past for past in PASTS if past == WARMED or past in args.pasts)
    return args


def interleaved(texts: Prompts) -> list[str]:
    """Return all prompts, the domains in turn."""
    return [text for row in zip_longest(*texts.values()) for text in row if text is not None]


class Run:
    """One measurement: each request's tokens/s and text, and all tokens a second, early on, and a round."""

    def __init__(
        self, results: Listed[Result], request_s: Listed[float], seconds: float, pieces: Listed[Pieces]
    ) -> None:
        """Hold the results in the order of the prompts, the seconds and the pieces of each, and the seconds of all."""
        self.texts = [result.token_ids for result in results]
        self.request_pace = [len(ids) / own_s for ids, own_s in zip(self.texts, request_s, strict=True)]
        self.seconds = seconds
        self.tokens = sum(map(len, self.texts))
        self.rounds = sum(result.speculation.rounds for result in results)
        self._pieces = pieces

    @property
    def tokens_per_s(self) -> float:
        """Return the tokens of all requests a second."""
        return self.tokens / self.seconds

    @property
    def early_tokens_per_s(self) -> float:
        """Return the tokens of all requests a second within the first EARLY_S, or the whole run if that is shorter.

        Of a request that goes on then the tokens are counted by the part of its text's characters that has come.
        """
        until_s = min(EARLY_S, self.seconds)
        pairs = zip(self.texts, self._pieces, strict=True)
        return sum(len(ids) * _part_by(until_s, pieces) for ids, pieces in pairs) / until_s


def measure(past: str, asked: Listed[str], others: Listed[str], args: argparse.Namespace) -> Run:
    """Start a deployment, give it its past, and measure the prompts on it."""
    with tempfile.TemporaryDirectory() as folder:
        url = start_server(PACELINE_STATE=folder)
        try:
            if past != PASTS[0]:
                ask(url, others, args, speculation="without drafts" not in past)
            if "pause" in past:
                time.sleep(args.pause_s)
            return ask(url, asked, args)
        finally:
            stop_server(PACELINE_STATE=folder)


def ask(url: str, texts: Listed[str], args: argparse.Namespace, *, speculation: bool = True) -> Run:
    """Ask all prompts, so many at once, and wait for all."""
    api_key = Settings.from_env().api_key

    def timed(text: str) -> tuple[Result, float, Pieces]:
        wish = {"prompt": text, "max_tokens": args.max_tokens, "speculation": speculation}
        pieces: Pieces = []

        def came(piece: str) -> None:
            pieces.append((time.monotonic() - began_s, len(piece)))

        asked_s = time.monotonic()
        result = generate(url, GenerateRequest.model_validate(wish), came, api_key)
        return result, time.monotonic() - asked_s, pieces

    began_s = time.monotonic()
    with ThreadPoolExecutor(args.streams) as pool:
        found = [*pool.map(timed, texts)]
    seconds = time.monotonic() - began_s
    results, request_s, pieces = zip(*found, strict=True)
    return Run(results, request_s, seconds, pieces)


def _part_by(at_s: float, pieces: Pieces) -> float:
    """Return the part of a text's characters that had come by then."""
    whole = sum(count for _, count in pieces)
    return sum(count for came_s, count in pieces if came_s <= at_s) / whole if whole else 0.0


def figures(own: Listed[Run], warmed: Listed[Run]) -> dict[str, Any]:
    """Return a past's figures over all blocks; `over warmed` pairs the tokens/s of the same request.

    `first seconds over warmed` pairs the first EARLY_S of the same block, so there are as many pairs as blocks; None
    where nothing had come by then.
    """
    early, warmed_early = ([run.early_tokens_per_s for run in runs] for runs in (own, warmed))
    early_ratio = paired_ratio(early, warmed_early).asdict() if all((*early, *warmed_early)) else None
    pairs = [(mine, theirs) for a, b in zip(own, warmed, strict=True) for mine, theirs in paired(a, b)]
    return {
        "tokens_per_s": round(fmean(run.tokens_per_s for run in own), 2),
        "by_block": [round(run.tokens_per_s, 2) for run in own],
        "seconds": [round(run.seconds, 2) for run in own],
        "tokens_a_round": round(sum(run.tokens for run in own) / sum(run.rounds for run in own), 3),
        "first_seconds_tokens_per_s": [round(pace, 2) for pace in early],
        "first seconds over warmed": early_ratio,
        "over warmed": paired_ratio([mine for mine, _ in pairs], [theirs for _, theirs in pairs]).asdict(),
    }


def paired(a: Run, b: Run) -> list[tuple[float, float]]:
    """Pair the tokens/s of the same request of two runs."""
    return [*zip(a.request_pace, b.request_pace, strict=True)]


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the figures as a table."""
    lines = [
        f"| before | tokens/s | tokens a round | / warmed (lower bound) | first {EARLY_S:g} s, tokens/s | / warmed |",
        "|---" * 6 + "|",
    ]
    for past, own in found.items():
        ratio, early = own["over warmed"], own["first seconds over warmed"]
        shown = f"{early['mean']:.2f}" if early else "-"
        lines.append(
            f"| {past} | {own['tokens_per_s']:.1f} | {own['tokens_a_round']:.2f} |"
            f" {ratio['mean']:.2f} ({ratio['lower']:.2f}) | {fmean(own['first_seconds_tokens_per_s']):.1f} |"
            f" {shown} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
