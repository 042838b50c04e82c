"""`./paceline bench soak`: load a deployment steadily for an hour and check that nothing in it
grows.

Starts an instance of its own, sends prompts of five domains at Poisson times, and samples each
process' memory and open files and Redis' memory, keys and connections every few seconds. Compares
the run's second quarter with its last; the first is for filling caches, which are kept small here.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from app.config import ROOT, Settings
from app.local.instance import Instance
from bench.clients.arrivals import poisson
from bench.clients.load import deployment, run
from bench.clients.load_report import Slo, figures
from bench.clients.resource_monitor import UNITS, Watcher, draw
from bench.help import parser as parser_of
from bench.report_header import heading
from bench.systems import INSTANCE

# Bounded caches that would fill only after hours: the records of ended requests, and the target's KV cache.
SMALL = {"PACELINE_REQUEST_TTL_S": "300", "PACELINE_KV_BYTES": str(2**29)}
GROWTH = 0.05  # share of the median by which a series may rise and still be flat; SLACK is allowed on top of it,
SLACK = {"memory": 8.0, "files": 4.0, "threads": 2.0, "redis": 2.0, "keys": 60.0, "connections": 4.0}  # if larger


def main(argv: Listed[str] | None = None) -> int:
    """Run the load, print, write figures and picture; return 0 if all stayed flat and no request
    failed."""
    args = parse_args(argv)
    small = {**SMALL, **{name: value for name, value in os.environ.items() if name in SMALL}}
    os.environ.update(small)
    seconds = 60.0 * args.minutes
    load = poisson(args.rate, seconds, args.max_tokens, args.seed)
    with deployment(None) as (url, _):
        watcher = Watcher(Instance(Settings.from_env().state, INSTANCE), args.every)
        watcher.start()
        served, took_s = run(url, load, "on", count())
        watcher.end()
    grown = {what: growth(what, own) for what, own in watcher.series.items()}
    clients = {key: value for key, value in figures(served, took_s, Slo(2.0, 0.15)).items() if key != "series"}
    report = {
        **heading("bench soak", argv),
        "settings": small,
        "clients": clients,
        "growth": grown,
        "restarts": watcher.restarts,
        "at_s": watcher.at_s,
        "series": watcher.series,
    }
    args.out.write_text(json.dumps(report) + "\n")
    draw(watcher.at_s, watcher.series, args.out.with_suffix(".png"))
    print(table(grown, clients))
    return 1 if clients["failed"] or watcher.restarts or any(_grew(own) for own in grown.values()) else 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench soak", __doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long requests come")
    parser.add_argument("--rate", type=float, default=0.5, help="requests a second")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens a request")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two looks")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "soak.json", help="file to write")
    args = parser.parse_args(argv)
    if min(args.minutes, args.rate, args.every) <= 0.0:
        parser.error("times and rate are more than 0")
    return args


def growth(what: str, series: Mapping[str, Listed[float]]) -> dict[str, dict[str, Any]]:
    """Return, by process, the medians of the second and of the last quarter, and whether the last
    is higher."""
    found = {}
    for whose, values in series.items():
        quarter = max(1, len(values) // 4)
        before, after = median(values[quarter : 2 * quarter] or values), median(values[-quarter:])
        is_more = after > before + max(GROWTH * before, SLACK[what])
        found[whose] = {"second quarter": before, "last quarter": after, "highest": max(values), "grew": is_more}
    return found


def table(grown: Mapping[str, Mapping[str, Mapping[str, Any]]], clients: Mapping[str, Any]) -> str:
    """Return the clients' figures and the growth as Markdown lines."""
    lines = [
        f"{clients['requests']} requests in {clients['seconds']:.0f} s, {clients['failed']} failed, "
        f"{clients['tokens_per_s']:.1f} tokens/s, a request p99 {clients['total_s']['p99']:.2f} s",
        "| | second quarter | last quarter | highest | |",
        "|---" * 5 + "|",
    ]
    for what, own in grown.items():
        for whose, one in own.items():
            numbers = " | ".join(f"{one[key]:.1f}" for key in ("second quarter", "last quarter", "highest"))
            lines.append(f"| {what}, {whose}, {UNITS[what]} | {numbers} | {'GREW' if one['grew'] else 'flat'} |")
    return "\n".join(lines)


def _grew(own: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(one["grew"] for one in own.values())


if __name__ == "__main__":
    sys.exit(main())
