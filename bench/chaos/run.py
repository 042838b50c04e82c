"""`./paceline chaos`: inject faults of every kind into a deployment under load and check every request.

Starts an instance of its own, asks for a set of texts undisturbed, then asks for them again and
again while faults are injected: each --times times, or with --minutes at random times (the same for
the same --seed). Every accepted request must end once, with the very tokens it has undisturbed, or
with a clear error; afterwards nothing may be left behind. Ends in a table with a row a fault.
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
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.config import Settings
from app.errors import InstanceError
from app.local.client import generate
from app.local.instance import Instance
from app.request import GenerateRequest
from bench.chaos.checks import left_behind
from bench.chaos.clients import Clients
from bench.chaos.deployment import Site, enter, paceline
from bench.chaos.faults import BESIDE, FAULTS
from bench.chaos.host import lacking, prepared
from bench.chaos.report import DRAIN_S, Injected, broken, summary, table, with_silences
from bench.help import count
from bench.help import parser as parser_of
from bench.prompts import PROMPTS
from bench.report_header import add_out, heading, write_report

OFTEN = "kill verify"
FAULTS_HELP = "only these (default: all that this machine can have)"


def main(argv: Listed[str] | None = None) -> int:
    """Run the faults, print and write the report; return 0 if no promise was broken. Raises InstanceError."""
    args = parse_args(argv)
    if args.list:
        print("\n".join(_fault_line(name) for name in FAULTS))
        return 0
    if missing := [f"{name} {why}" for name in args.faults if (why := lacking(name, args.other)) is not None]:
        raise InstanceError("; ".join(missing))
    settings = Settings.from_env()
    instance = Instance(settings.state, args.instance or f"chaos-{os.getpid()}")
    with prepared(instance, args.faults) as environ:
        paceline(instance, environ, "up", "-d")
        try:
            site = enter(instance, settings, args.seed, environ, args.other)
            texts = requests(args.requests, args.max_tokens)
            with busy_cores() if args.busy else nullcontext():
                found = storm(site, texts, plan(args), args.clients, args.gap, args.seed)
        finally:
            paceline(instance, environ, "down")
    report = heading("chaos", argv) | found
    write_report(args.out, report)
    print(json.dumps({"requests": report["requests"], "broken": broken(report)}, indent=1))
    print("\n".join(report["table"]))
    return 1 if broken(report) else 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("chaos", __doc__)
    parser.add_argument("--faults", nargs="+", metavar="FAULT", choices=FAULTS, help=FAULTS_HELP)
    parser.add_argument("--list", action="store_true", help="print the faults there are")
    parser.add_argument("--times", type=count, default=1, help="how often each fault comes")
    parser.add_argument("--minutes", type=float, help=f"random faults for so long instead, every second one {OFTEN!r}")
    parser.add_argument("--busy", action="store_true", help="keep every core busy with another program")
    parser.add_argument("--other", type=Path, help="a clone of another version, for the fault 'other version'")
    parser.add_argument("--gap", type=float, default=4.0, help="seconds from a fault's end to the next, on average")
    parser.add_argument("--seed", type=int, default=0, help="of the faults and of what clients ask")
    parser.add_argument("--clients", type=int, default=6, help="requests at once")
    parser.add_argument("--requests", type=int, default=12, help="different texts to ask for")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens a text")
    parser.add_argument("--instance", help="name of the instance that is started")
    add_out(parser, "chaos")
    args = parser.parse_args(argv)
    if args.other is not None and not (args.other / "paceline").is_file():
        parser.error(f"--other: {args.other} is no clone: it has no file paceline")
    args.other = args.other and args.other.absolute()
    args.faults = args.faults or [name for name in FAULTS if lacking(name, args.other) is None]
    return args


def _fault_line(name: str) -> str:
    """Describe a fault in a line, with the reason when this machine cannot have it."""
    fault, why = FAULTS[name], lacking(name)
    summary = (getattr(fault, "func", fault).__doc__ or "").split("\n\n")[0]
    return f"{name:<26}{summary}" + ("" if why is None else f" (not here: {why})")


def plan(args: argparse.Namespace) -> Iterator[tuple[float, str]]:
    """Yield (seconds to wait after it, name of a fault), one after another."""
    if args.minutes is None:
        yield from ((args.gap, fault) for fault in args.faults for _ in range(args.times))
        return
    draw, until_s = random.Random(args.seed), time.monotonic() + 60.0 * args.minutes
    while time.monotonic() < until_s:
        name = draw.choice(args.faults)
        yield draw.uniform(0.0, 2.0 * args.gap), OFTEN if OFTEN in args.faults and draw.random() < 0.5 else name


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
    time.sleep(gap_s)
    injected: list[Injected] = []
    counters = crowd.counts
    ended = [counters.ended()]
    for wait_s, name in faults:
        try:
            injected.append(one := inject(site, name, crowd, started, wait_s))
        except (TimeoutError, InstanceError) as error:
            site.complaints.append(f"{name}: {error}")
            break
        ended.append(counters.ended())
        print(f"{one.at_s:7.1f} s  {name}: ready after {one.ready_s} s, all clients after {one.moved_s} s", flush=True)
    crowd.stop(DRAIN_S)
    ended[-1] = counters.ended()
    injected = [
        replace(one, ended={end: after[end] - before[end] for end in after})
        for one, (before, after) in zip(injected, pairwise(ended), strict=True)
    ]
    silences = ((client, begin - started, end - started) for client, begin, end in counters.silences)
    injected = with_silences(injected, silences)
    by_fault = summary([asdict(one) for one in injected])
    return {
        "seed": seed,
        "clients": clients,
        "seconds": round(time.monotonic() - started, 1),
        "faults": [asdict(one) for one in injected],
        "by fault": by_fault,
        "table": table(by_fault),
        "requests": {
            "right": counters.right,
            "wrong": counters.wrong,
            "failed": counters.failed,
            "lost": counters.lost,
            "refused, tried again": sum(counters.refused.values()),
            "reasons": counters.refused,
            "longest_s": round(counters.longest_s, 2),
        },
        "left behind": [*site.complaints, *left_behind(site)],
    }


def inject(site: Site, name: str, crowd: Clients, since_s: float, wait_s: float) -> Injected:
    """Inject one fault, time how the deployment recovers, and wait. Raises TimeoutError when it does not recover."""
    with BESIDE[name](site) if name in BESIDE else nullcontext():
        began_s = time.monotonic()
        FAULTS[name](site)
        ended_s = time.monotonic()
        ready_s = site.await_ready()
        while not crowd.all_moved_since(ended_s) and time.monotonic() - ended_s < ready_s + DRAIN_S:
            time.sleep(0.05)
        moved_s = time.monotonic() - ended_s
        time.sleep(wait_s)
        heard_s = time.monotonic() - began_s
    at_s, lasted_s = round(began_s - since_s, 2), round(ended_s - began_s, 2)
    return Injected(at_s, name, lasted_s, round(ready_s, 2), round(moved_s, 2), round(heard_s, 2))


@contextmanager
def busy_cores() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Keep every core busy with a process during the block, and yield these processes."""
    command = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main())
