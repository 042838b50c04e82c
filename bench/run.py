"""`./paceline bench`: compare Paceline with transformers' `generate` and with itself, in one interleaved run.

Measures tokens/s and time to first token with speculation on and off at several concurrencies, in one process and
through a whole deployment (Celery, Redis, web), and on against off for each prompt domain. Every run's tokens are
compared: a figure with other tokens is no figure. Sampled, or with int8 activations, `generate` is left out: it samples
otherwise, and rounds no activations.
"""

import argparse
import os
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

from app.config import THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from bench.help import parser as parser_of
from bench.prompts import PROMPTS
from bench.report_header import add_out, heading, write_report
from bench.stats import median, paired_ratio
from bench.systems import Arm, Run, local_arms, server_arms, start_server, stop_server, transformers_arm

Figures = dict[str, Any]
SEED = 7  # of sampled requests


def main(argv: Sequence[str] | None = None, epilog: str | None = None) -> int:
    """Measure, print, and write the figures with the machine named; return the exit status. `epilog` ends the help."""
    args = parse_args(argv, epilog)
    settings = Settings.from_env()
    url = None if args.no_server else start_server()
    try:
        arms = make_arms(settings, args.max_tokens, url, args.temperature, args.top_p)
        figures: Figures = {**heading("bench", argv), "max_tokens": args.max_tokens}
        if not args.no_domains:  # first, and each prompt once: later the suffix drafter would know the answers
            figures["domains"] = by_domain(arms, args.domain_prompts)
        figures["requests_each"] = args.each
        figures["concurrency"] = {n: at_concurrency(arms, n, args.repeats, args.each) for n in args.concurrency}
    finally:
        if url:
            stop_server()
    print("\n".join(lines(figures)))
    write_report(args.out, figures)
    return 0


def lines(figures: Figures) -> Iterator[str]:
    """Show the medians and ratios; the report has the rest."""
    for n, found in figures["concurrency"].items():
        yield f"\n{n} at once      tokens/s   first token"
        yield from (
            f"  {name:13s} {found[name]['tokens_per_s']:7.1f} {found[name]['ttft_s']:9.3f} s"
            for name in found
            if name != "ratios"
        )
        yield from (f"  {name}: {one['mean']:.2f}{_bound(one)}" for name, one in found["ratios"].items())


def _bound(one: dict[str, float]) -> str:
    return f" (at least {one['lower']:.2f}, 95 %)" if one["pairs"] > 1 else " (one pair: no bound)"


def parse_args(argv: Sequence[str] | None, epilog: str | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench", __doc__, epilog)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16], help="clients: requests at once")
    parser.add_argument("--each", type=int, default=3, help="requests of each client, one after another")
    parser.add_argument("--repeats", type=int, default=4, help="rounds over all arms at each concurrency")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens a request")
    parser.add_argument("--domain-prompts", type=int, default=20, help="pairs for each domain, at most 20")
    parser.add_argument("--no-domains", action="store_true", help="leave the comparison by domain out")
    parser.add_argument("--no-server", action="store_true", help="leave the deployment out")
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="above 0 without transformers, which samples otherwise"
    )
    parser.add_argument("--top-p", type=float, default=1.0, help="of sampled tokens")
    add_out(parser, "cpu")
    return parser.parse_args(argv)


def make_arms(
    settings: Settings, max_tokens: int, url: str | None, temperature: float = 0.0, top_p: float = 1.0
) -> dict[str, Arm]:
    """Load all arms and warm them up."""
    sampled = {"temperature": temperature, "top_p": top_p, "seed": SEED} if temperature else {}
    arms = {} if sampled or settings.activations == "int8" else {"transformers": transformers_arm(settings, max_tokens)}
    arms["local_on"], arms["local_off"] = local_arms(settings, max_tokens, **sampled)
    if url:
        arms["server_on"], arms["server_off"] = server_arms(url, max_tokens, **sampled)
    for arm in arms.values():
        arm(["Say hello."], 1)
    return arms


def at_concurrency(arms: dict[str, Arm], n: int, repeats: int, each: int) -> Figures:
    """Run every arm on the same prompts of n clients, in turn and in changing order, so that all meet the same
    disturbances. Each order comes a second time backwards: with an even number of repeats no arm precedes another more
    often."""
    prompts = [prompt for group in zip(*PROMPTS.values(), strict=True) for prompt in group]
    new = count()  # no prompt twice: the suffix drafter would know the answer
    names = list(arms)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for repeat in range(repeats):
        batch = [f"{prompts[i % len(prompts)]} (Question {n}.{i})" for i in islice(new, n * each)]
        order = random.Random(repeat // 2).sample(names, len(names))
        for name in reversed(order) if repeat % 2 else order:
            runs[name].append(arms[name](batch, n))
            print(f"{n:3d} at once  {name:13s} {runs[name][-1].tokens_per_s:7.1f} tokens/s", flush=True)
        # A padded batch rounds otherwise than a prompt alone: there near ties may fall the other way.
        check_same([runs[name][-1] for name in names if n == 1 or name != "transformers"])
    return {name: summary(runs[name], n) for name in names} | {
        "ratios": {f"{a} / {b}": ratio(runs[a], runs[b]) for a, b in COMPARED if a in runs and b in runs}
    }


COMPARED = (
    ("local_off", "transformers"),
    ("local_on", "transformers"),
    ("local_on", "local_off"),
    ("server_on", "server_off"),
    ("server_off", "local_off"),
    ("server_on", "local_on"),
)


def by_domain(arms: dict[str, Arm], prompts_each: int) -> Figures:
    """Compare speculation on with off for each domain, one request at a time, paired and interleaved."""
    kind = "server" if "server_on" in arms else "local"
    found: Figures = {"arm": kind}
    for domain, prompts in PROMPTS.items():
        on: list[Run] = []
        off: list[Run] = []
        for i, prompt in enumerate(prompts[:prompts_each]):
            for name in ("on", "off") if i % 2 else ("off", "on"):
                (on if name == "on" else off).append(arms[f"{kind}_{name}"]([prompt], 1))
            check_same([on[-1], off[-1]])
        found[domain] = {
            "on / off": ratio(on, off),
            "tokens_per_round": round(sum(r.tokens for r in on) / sum(r.rounds for r in on), 3),
        }
        print(f"{domain:6s} {found[domain]}", flush=True)
    return found


def summary(runs: list[Run], n: int) -> Figures:
    """Return an arm's medians over its runs of n clients, and its tokens a round."""
    return {
        "tokens_per_s": round(median([run.tokens_per_s for run in runs]), 2),
        "ttft_s": round(median([t for run in runs for t in run.ttft_s]), 4),
        "tokens_per_round": round(sum(run.tokens for run in runs) / max(1, sum(run.rounds for run in runs)), 3),
        "ms_per_round": round(median([1e3 * run.seconds * n / max(1, run.rounds) for run in runs]), 2),
    }


def ratio(new: list[Run], old: list[Run]) -> dict[str, float]:
    """Return the paired ratio of tokens/s, with its lower bound."""
    return paired_ratio([r.tokens_per_s for r in new], [r.tokens_per_s for r in old]).asdict()


def check_same(runs: list[Run]) -> None:
    """Raise SystemExit unless all arms committed the same tokens: a difference is a bug, not a figure."""
    if any(run.token_ids != runs[0].token_ids for run in runs):
        raise SystemExit("the arms generated different tokens: no figures")


if __name__ == "__main__":
    sys.exit(main())
