"""`./paceline bench streams`: hold hundreds of open event streams on one web process and check that
nothing grows.

Starts an instance of its own and keeps the streams open, some of running requests, the others of
requests that wait for their turn; the first reader of each sends it, the others follow it. Compares
every token of every stream. Meanwhile samples the web process and times small calls to it.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from pathlib import Path
from statistics import fmean
from typing import Any

from app.config import ROOT, Settings
from app.local.instance import Instance
from bench.clients import paced_streams
from bench.clients.load import deployment
from bench.clients.load_report import spread
from bench.clients.resource_monitor import UNITS, Watcher, cpu_s, draw
from bench.clients.soak import growth
from bench.clients.stream_clients import Fleet
from bench.help import parser as parser_of
from bench.report_header import heading
from bench.systems import INSTANCE

ASKED = ("/healthz", "/v1/models", "/readyz")  # of the process alone, of it with no wait, and of it and Redis
OPENING_S = 60.0  # longest wait for all streams to open
SHOWN = ("memory", "threads", "files", "connections")


def main(argv: Listed[str] | None = None) -> int:
    """Hold the streams, print, write figures and picture; return 0 if every stream was whole and
    nothing grew."""
    args = parse_args(argv)
    if args.events_per_s:
        return paced_streams.run(args, argv)
    instance = Instance(Settings.from_env().state, INSTANCE)
    with deployment(None) as (url, _):
        watcher = Watcher(instance, args.every)
        fleet = Fleet(url, args.streams, args.readers, args.max_tokens)
        idle = watcher.now()
        met = asyncio.run(_hold(fleet, watcher, args))
    series = {what: {"web": own["web"]} if "web" in own else own for what, own in watcher.series.items()}
    series = {what: series[what] for what in SHOWN} | {"share of a core": {"web": met.pop("busy")}}
    errors = sorted({read.error for read in fleet.reads if read.error is not None})
    report = {
        **heading("bench streams", argv),
        "streams": {
            "wanted": args.streams,
            "ended": len(fleet.reads),
            "tokens": sum(read.tokens for read in fleet.reads),
            "heartbeats": sum(read.heartbeats for read in fleet.reads),
            "seconds": spread(read.seconds for read in fleet.reads),
            "failed": sum(read.error is not None for read in fleet.reads),
            "errors": errors[:20],
        },
        **met,
        "before": {what: idle[what].get("web", max(idle[what].values())) for what in SHOWN},
        "growth": {what: growth(what, series[what]) for what in SHOWN},
        "restarts": watcher.restarts,
        "at_s": watcher.at_s,
        "series": series,
    }
    args.out.write_text(json.dumps(report) + "\n")
    draw(watcher.at_s, series, args.out.with_suffix(".png"))
    print(table(report))
    grew = any(one["grew"] for own in report["growth"].values() for one in own.values())
    return 1 if errors or grew or watcher.restarts else 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench streams", __doc__)
    parser.add_argument("--streams", type=int, default=500, help="open at once")
    parser.add_argument("--readers", type=int, default=2, help="of each request, its sender among them")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long they are held")
    parser.add_argument("--max-tokens", type=int, default=32, help="tokens a request")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "streams.json", help="file to write")
    paced = parser.add_argument_group("streams whose events come at a stated pace, without a model")
    paced.add_argument("--events-per-s", type=float, nargs="+", default=[], help="of each stream; one run for each")
    paced.add_argument("--verifiers", type=int, default=4, help="that share the requests, their steps out of phase")
    paced.add_argument("--seconds", type=float, default=15.0, help="measured at each pace")
    paced.add_argument("--silent-s", type=float, default=5.0, help="measured before, while nothing comes")
    args = parser.parse_args(argv)
    positive = (args.streams, args.readers, args.minutes, args.max_tokens, args.every, args.seconds, args.silent_s)
    if min(*positive, *args.events_per_s, args.verifiers) <= 0:
        parser.error("numbers and times are more than 0")
    return args


async def _hold(fleet: Fleet, watcher: Watcher, args: argparse.Namespace) -> dict[str, Any]:
    """Keep the streams open for the time asked for; return what was measured from outside
    meanwhile."""
    running = asyncio.create_task(fleet.run())
    began_s = time.monotonic()
    while fleet.open < args.streams and not running.done() and time.monotonic() - began_s < OPENING_S:
        await asyncio.sleep(0.1)
    watcher.start()
    web = watcher.pid("web")
    asked: dict[str, list[float]] = {path: [] for path in ASKED}
    refused, opened, busy = 0, [], []
    until_s, since = time.monotonic() + 60.0 * args.minutes, (time.monotonic(), cpu_s(web))
    while time.monotonic() < until_s and not running.done():
        for path in ASKED:
            status, took_s = await fleet.ask("GET", path)
            asked[path].append(took_s)
            refused += status != 200
        opened.append(fleet.open)
        await asyncio.sleep(args.every)
        now = (time.monotonic(), cpu_s(web))
        busy.append(round((now[1] - since[1]) / (now[0] - since[0]), 3))
        since = now
    await asyncio.to_thread(watcher.end)
    await fleet.end()
    await running
    return {
        "open": {"least": min(opened), "mean": round(fmean(opened), 1)},
        "asked": {path: {**spread(took_s), "highest": round(max(took_s), 4)} for path, took_s in asked.items()},
        "not answered with 200": refused,
        "busy": busy,
    }


def table(report: Mapping[str, Any]) -> str:
    """Return the streams' counts, the small calls' times and the growth as Markdown lines."""
    streams, asked = report["streams"], report["asked"]
    lines = [
        f"{report['open']['mean']:.0f} streams open (at least {report['open']['least']}), {streams['ended']} ended, "
        f"{streams['failed']} failed, {streams['tokens']} tokens, {streams['heartbeats']} heartbeats",
        *(f"failed: {error}" for error in streams["errors"]),
        f"web: {fmean(report['series']['share of a core']['web']):.2f} of a core",
        *(f"{path}: {1e3 * one['p50']:.1f} ms, p99 {1e3 * one['p99']:.1f} ms" for path, one in asked.items()),
        "| | before | second quarter | last quarter | highest | |",
        "|---" * 6 + "|",
    ]
    for what, own in report["growth"].items():
        for one in own.values():
            numbers = " | ".join(f"{one[key]:.1f}" for key in ("second quarter", "last quarter", "highest"))
            result = "GREW" if one["grew"] else "flat"
            lines.append(f"| {what}, {UNITS[what]} | {report['before'][what]:.1f} | {numbers} | {result} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
