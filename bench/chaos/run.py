"""`./paceline chaos`: inject faults of every kind into a deployment under load and check every request.

Starts an instance of its own, asks for a set of texts undisturbed, then asks for them again and
again while faults are injected: each once, or with --minutes at random times (the same for the same
--seed). Every accepted request must end once, with the very tokens it has undisturbed, or with a
clear error; afterwards nothing may be left behind.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence as Listed
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.config import ROOT, Settings
from app.errors import InstanceError
from app.local.client import generate
from app.local.instance import Instance
from app.request import GenerateRequest
from bench.chaos.checks import left_behind
from bench.chaos.clients import STALL_S, Clients
from bench.chaos.deployment import Site, enter
from bench.chaos.faults import FAULTS
from bench.chaos.host import lacking, prepared
from bench.help import parser as parser_of
from bench.prompts import PROMPTS
from bench.report_header import add_out, heading, write_report

DRAIN_S = 120.0
FAULTS_HELP = "only these (default: all that this machine can have)"


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault, and its times in seconds."""

    at_s: float  # since the start
    fault: str
    lasted_s: float
    ready_s: float  # from its end until every process works
    moved_s: float  # from its end until every client has received something
    longest_stall_s: float = 0.0  # the longest silence of a client that it began


def main(argv: Listed[str] | None = None) -> int:
    """Run the faults, print and write the report; return 0 if no promise was broken. Raises InstanceError."""
    args = parse_args(argv)
    if args.list:
        print("\n".join(_fault_line(name) for name in FAULTS))
        return 0
    if missing := [f"{name} {why}" for name in args.faults if (why := lacking(name)) is not None]:
        raise InstanceError("; ".join(missing))
    settings = Settings.from_env()
    instance = Instance(settings.state, args.instance or f"chaos-{os.getpid()}")
    with prepared(instance, args.faults) as environ:
        _paceline("up", "-d", "--instance", instance.name, **environ)
        try:
            site = enter(instance, settings, args.seed)
            found = storm(site, requests(args.requests, args.max_tokens), plan(args), args.clients, args.gap, args.seed)
        finally:
            _paceline("down", "--instance", instance.name)
    report = heading("chaos", argv) | found
    write_report(args.out, report)
    print(json.dumps({"requests": report["requests"], "broken": broken(report)}, indent=1))
    return 1 if broken(report) else 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("chaos", __doc__)
    possible = [name for name in FAULTS if lacking(name) is None]
    parser.add_argument("--faults", nargs="+", metavar="FAULT", choices=FAULTS, default=possible, help=FAULTS_HELP)
    parser.add_argument("--list", action="store_true", help="print the faults there are")
    parser.add_argument("--minutes", type=float, help="random faults for so long, instead of each once")
    parser.add_argument("--gap", type=float, default=4.0, help="seconds from a fault's end to the next, on average")
    parser.add_argument("--seed", type=int, default=0, help="of the faults and of what clients ask")
    parser.add_argument("--clients", type=int, default=6, help="requests at once")
    parser.add_argument("--requests", type=int, default=12, help="different texts to ask for")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens a text")
    parser.add_argument("--instance", help="name of the instance that is started")
    add_out(parser, "chaos")
    return parser.parse_args(argv)


def _fault_line(name: str) -> str:
    """Describe a fault in a line, with the reason when this machine cannot have it."""
    fault, why = FAULTS[name], lacking(name)
    summary = (getattr(fault, "func", fault).__doc__ or "").split("\n\n")[0]
    return f"{name:<26}{summary}" + ("" if why is None else f" (not here: {why})")


def plan(args: argparse.Namespace) -> Iterator[tuple[float, str]]:
    """Yield (seconds to wait, name of a fault), one after another."""
    if args.minutes is None:
        yield from ((args.gap, fault) for fault in args.faults)
        return
    draw, until_s = random.Random(args.seed), time.monotonic() + 60.0 * args.minutes
    while time.monotonic() < until_s:
        yield draw.uniform(0.0, 2.0 * args.gap), draw.choice(args.faults)


def requests(count: int, max_tokens: int) -> list[GenerateRequest]:
    """Make requests of several domains and lengths, greedy and sampled."""
    prompts = [prompt for of_domain in zip(*PROMPTS.values(), strict=False) for prompt in of_domain]
    return [
        GenerateRequest(
            prompt=prompts[i % len(prompts)],
            max_tokens=max(8, max_tokens * (1 + i % 4) // 4),
            temperature=0.8 * (i % 2),
            seed=i,
        )
        for i in range(count)
    ]


def storm(
    site: Site,
    texts: Listed[GenerateRequest],
    faults: Iterator[tuple[float, str]],
    clients: int,
    gap_s: float,
    seed: int,
) -> dict[str, Any]:
    """Ask for all texts undisturbed, then under faults; return the report's figures."""
    url = site.health().url or ""
    expected = [generate(url, text, None).token_ids for text in texts]
    crowd = Clients(url, texts, expected, seed)
    started = time.monotonic()
    crowd.start(clients)
    injected: list[Injected] = []
    for wait_s, name in faults:
        time.sleep(wait_s)
        injected.append(inject(site, name, crowd, started))
        print(json.dumps(asdict(injected[-1])), flush=True)
    time.sleep(gap_s)
    crowd.stop(DRAIN_S)
    counters = crowd.counts
    injected = with_stalls(injected, [(begin - started, end - started) for begin, end in counters.stalls])
    return {
        "seed": seed,
        "clients": clients,
        "seconds": round(time.monotonic() - started, 1),
        "faults": [asdict(one) for one in injected],
        "requests": {
            "right": counters.right,
            "wrong": counters.wrong,
            "failed": counters.failed,
            "lost": counters.lost,
            "refused, tried again": sum(counters.refused.values()),
            "reasons": counters.refused,
            "longest_s": round(counters.longest_s, 2),
        },
        "left behind": left_behind(site),
    }


def inject(site: Site, name: str, crowd: Clients, since_s: float) -> Injected:
    """Inject one fault and time how the deployment recovers. Raises TimeoutError when it does not."""
    began_s = time.monotonic()
    FAULTS[name](site)
    ended_s = time.monotonic()
    ready_s = site.await_ready()
    while not crowd.all_moved_since(ended_s) and time.monotonic() - ended_s < ready_s + DRAIN_S:
        time.sleep(0.05)
    moved_s = time.monotonic() - ended_s
    at_s, *times = (round(seconds, 2) for seconds in (began_s - since_s, ended_s - began_s, ready_s, moved_s))
    return Injected(at_s, name, *times)


def with_stalls(injected: Listed[Injected], stalls: Listed[tuple[float, float]]) -> list[Injected]:
    """Give each silence (start, end), in seconds as `at_s`, to the fault that began it.

    A silence may outlast its fault and the next ones: a client of a half-open connection waits until
    its own time limit. It begins with the piece before, an ordinary silence ahead of its fault.
    """
    longest = [0.0] * len(injected)
    for begin_s, end_s in stalls:
        began = [i for i, one in enumerate(injected) if one.at_s < begin_s + STALL_S]
        if began:
            longest[began[-1]] = max(longest[began[-1]], round(end_s - begin_s, 2))
    return [replace(one, longest_stall_s=stall_s) for one, stall_s in zip(injected, longest, strict=True)]


def broken(report: dict[str, Any]) -> list[str]:
    """List the promises that were not kept."""
    outcomes = report["requests"]
    stuck = [
        f"{one['fault']}: {DRAIN_S:.0f} s later some client had got nothing yet"
        for one in report["faults"]
        if one["moved_s"] - one["ready_s"] >= DRAIN_S - 1.0
    ]
    ends = [f"{what}: {one}" for what in ("wrong", "failed", "lost") for one in outcomes[what]]
    return [*ends, *report["left behind"], *stuck]


def _paceline(*arguments: str, **environ: str) -> None:
    environment = {**os.environ, "PACELINE_KEYS": "", **environ}  # the instance is ours alone
    command = [sys.executable, "-m", "app.cli.main", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise InstanceError(f"paceline {' '.join(arguments)}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
