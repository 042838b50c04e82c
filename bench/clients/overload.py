"""`./paceline bench overload`: send ten times more requests than can be served and report all of
them.

Starts an instance of its own and sends requests at Poisson times in three parts of equal length: as
many as it can serve, ten times as many, and the first number again. Admitted requests must still be
served, the others be refused at once.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from itertools import count
from pathlib import Path
from typing import Any

from app.config import ROOT, Settings
from app.local.instance import Instance
from bench.clients.arrivals import steps
from bench.clients.load import deployment, run
from bench.clients.load_report import Served, Slo, figures, spread
from bench.clients.resource_monitor import Watcher, draw
from bench.help import parser as parser_of
from bench.report_header import heading
from bench.systems import INSTANCE

PHASES = ("before", "overload", "after")
CALM = 1.5  # times the 95th percentile from before: requests as fast as that show recovery
FEW = 5  # requests in a row


def main(argv: Listed[str] | None = None) -> int:
    """Run the load, print, write figures and picture; return 0 if no admitted request failed."""
    args = parse_args(argv)
    if args.admit is not None:
        os.environ["PACELINE_MAX_ACTIVE_REQUESTS"] = str(args.admit)
    seconds = len(PHASES) * args.seconds
    load = steps([args.rate, args.factor * args.rate, args.rate], seconds, args.max_tokens, args.seed)
    with deployment(None) as (url, _):
        watcher = Watcher(Instance(Settings.from_env().state, INSTANCE), args.every)
        watcher.start()
        served, _ = run(url, load, "on", count())
        watcher.end()
    phases = by_phase(served, args.seconds)
    report = {
        **heading("bench overload", argv),
        "phases": phases,
        "recovered_s": recovered_s(served, args.seconds),
        "highest": {what: {name: max(own) for name, own in all_.items()} for what, all_ in watcher.series.items()},
        "restarts": watcher.restarts,
        "at_s": watcher.at_s,
        "series": watcher.series,
    }
    args.out.write_text(json.dumps(report) + "\n")
    draw(watcher.at_s, watcher.series, args.out.with_suffix(".png"))
    print(table(report))
    return 1 if watcher.restarts or any(phase["failed"] for phase in phases.values()) else 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench overload", __doc__)
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second that can be served for ever")
    parser.add_argument("--factor", type=float, default=10.0, help="how many times as many come in between")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each of the three parts")
    parser.add_argument("--admit", type=int, help="requests at once, others are refused (default: the settings')")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens a request")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks at the processes")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "overload.json", help="file to write")
    args = parser.parse_args(argv)
    if min(args.rate, args.factor, args.seconds, args.every) <= 0.0:
        parser.error("rates and times are more than 0")
    return args


def by_phase(served: Iterable[Served], seconds: float) -> dict[str, dict[str, Any]]:
    """Return figures of the requests sent in each part of `seconds`, admitted and refused apart."""
    found = {}
    requests = [*served]
    for i, phase in enumerate(PHASES):
        own = [one for one in requests if i * seconds <= one.sent_s < (i + 1) * seconds]
        admitted = [one for one in own if not is_refused(one)]
        refused = [one for one in own if is_refused(one)]
        took_s = max((one.end_s for one in admitted), default=seconds) - i * seconds
        of_admitted = figures(admitted, took_s, Slo(2.0, 0.15))
        del of_admitted["series"]
        found[phase] = {**of_admitted, "refused": len(refused), "refused_s": spread(one.total_s for one in refused)}
    return found


def is_refused(one: Served) -> bool:
    """Tell whether the server refused the request and asked to try again later."""
    return one.error is not None and "try again" in one.error


def recovered_s(served: Iterable[Served], seconds: float) -> float | None:
    """Return the seconds from the overload's end until requests are answered as before it; None:
    never.

    Recovered at the first of FEW requests in a row that take at most CALM times the 95th percentile
    from before.
    """
    done = sorted((one for one in served if one.error is None), key=lambda one: one.sent_s)
    before = spread(one.total_s for one in done if one.sent_s < seconds)["p95"]
    after = [one for one in done if one.sent_s >= 2 * seconds]
    for i in range(len(after) - FEW + 1):
        if all(one.total_s <= CALM * before for one in after[i : i + FEW]):
            return round(after[i].sent_s - 2 * seconds, 2)
    return None


def table(report: dict[str, Any]) -> str:
    """Return the phases as a Markdown table, then the time to recover and the memory."""
    lines = [
        "| | requests | refused | refused in, s (p99) | first token p50 / p99, s | all of it p50 / p99, s | failed |",
        "|---" * 7 + "|",
    ]
    for name, one in report["phases"].items():
        lines.append(
            f"| {name} | {one['requests'] + one['refused']} | {one['refused']} | {one['refused_s']['p99']:.3f} "
            f"| {one['ttft_s']['p50']:.2f} / {one['ttft_s']['p99']:.2f} "
            f"| {one['total_s']['p50']:.2f} / {one['total_s']['p99']:.2f} | {one['failed']} |"
        )
    memory = ", ".join(f"{name} {value:.0f}" for name, value in report["highest"]["memory"].items())
    return "\n".join([*lines, "", f"as before after {report['recovered_s']} s; at most, MiB: {memory}"])


if __name__ == "__main__":
    sys.exit(main())
