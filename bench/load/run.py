"""`./paceline bench load SCENARIO`: send requests as a scenario says, and report what clients see.

Most scenarios send prompts of five domains to a deployment of their own, or to a running one at --url. They report
time to first token, time per output token, the whole request (p50, p95, p99), tokens/s, goodput under an objective,
refusals, acceptance and draft waste; of a deployment of their own also the busy share of each kind of process and how
far each verifier's expected costs are off. With several --arms the same requests are sent for each, in turn.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Listed
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

from app.config import Settings
from app.counters import series
from app.errors import InvalidRequest
from app.local.instance import Instance
from app.metrics import BUSY, GROUP
from app.policy import Policy
from bench.chaos.deployment import Site, enter
from bench.help import Defaults
from bench.help import parser as parser_of
from bench.load import meanwhile, start
from bench.load.arrivals import Arrival, gamma, poisson, ramp, steps, trace
from bench.load.client import ARMS, UNSTEERED, run
from bench.load.report import Figures, Slo, figures, parts, recovered_s, table
from bench.load.watcher import Watcher, grew
from bench.prompts import add_prompts_file
from bench.report_header import add_out, heading, write_report
from bench.systems import ALIKE, INSTANCE, start_server, stop_server

ARRIVALS = {  # scenarios: what they are, and the flags of their own
    "poisson": ("requests at independent times; one load for each --rate", ("rate",)),
    "bursty": ("as poisson, with gamma-distributed gaps", ("rate", "variation")),
    "ramp": ("a rate that goes in straight lines through --rates", ("rates",)),
    "steps": ("each of --rates in turn", ("rates",)),
    "trace": ("the times and lengths of a recorded load", ("trace", "speed")),
    "closed": ("so many requests at once, each followed by the next", ("streams",)),
    "overload": ("many more requests than can be served, between two parts with as many as can", ("rate", "factor")),
    "soak": ("an hour of steady load, in which no process may grow", ("rate",)),
}
FLAGS: dict[str, dict[str, Any]] = {
    "rate": {"type": float, "nargs": "+", "default": [1.0], "help": "requests a second; one load for each"},
    "rates": {"type": float, "nargs": "+", "default": [0.5, 5.0, 0.5], "help": "requests a second, in turn"},
    "variation": {"type": float, "default": 3.0, "help": "coefficient of variation of the gaps; poisson's is 1"},
    "trace": {"type": Path, "required": True, "help": "CSV or JSON lines of timestamp, prompt_tokens, output_tokens"},
    "speed": {"type": float, "default": 1.0, "help": "how much faster than it was the trace is replayed"},
    "streams": {"type": int, "default": 8, "help": "requests at once"},
    "factor": {"type": float, "default": 10.0, "help": "how many times as many requests come in the middle part"},
}
OWN = {"start": start, "meanwhile": meanwhile}  # scenarios with flags and figures of their own
DEFAULTS = {  # where they differ from the flags' own
    "overload": {"rate": [2.0], "seconds": 360.0, "arms": ["on"], "every": 2.0},
    "soak": {"rate": [0.5], "seconds": 3600.0, "arms": ["on"], "every": 10.0},
}
ONE_ARM = ("overload", "soak", "meanwhile")
# Bounded caches that would fill only after hours: the records of ended requests, and the target's KV cache.
SMALL_CACHES = {"PACELINE_REQUEST_TTL_S": "300", "PACELINE_KV_BYTES": str(2**29)}
REPORTED_S = 1.5  # until each process has written its counters with a heartbeat
FOLLOWED_S = 2.0  # until a tick that was under way has ended, and until verifiers follow a policy


def main(argv: Listed[str] | None = None) -> int:
    """Run a scenario, print and write its figures; return the exit status.

    It is 1 if an admitted request failed or a process was started again; in a soak also if a process grew.
    """
    args = parse_args(argv)
    if args.scenario not in ONE_ARM and getattr(args, "url", None) is None:
        os.environ.update(ALIKE)  # inherited by the instances that are started
    if args.scenario in OWN:
        return int(OWN[args.scenario].main(args, argv))
    try:
        loads = {rate: arrivals(args, rate) for rate in args.rate}
    except InvalidRequest as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 2
    if args.scenario == "soak":
        os.environ.update({**SMALL_CACHES, **os.environ})
    if args.admit is not None:
        os.environ["PACELINE_MAX_ACTIVE_REQUESTS"] = str(args.admit)
    found: list[Figures] = []
    new = count()
    with deployment(args.url) as (url, is_own):
        for rate, load in loads.items():
            for arm in args.arms:
                with first_policy() if arm == UNSTEERED else nullcontext():
                    found.append(measure(url, is_own, load, rate, new, args, arm) | {"rate": rate, "arm": arm})
                print(table([found[-1], *found[-1].get("parts", [])]), flush=True)
    about = {"scenario": args.scenario, "settings": {name: os.environ.get(name) for name in SMALL_CACHES}}
    write_report(args.out, {**heading("bench load", argv), **about, "loads": found})
    print(table(found))
    is_broken = any(one["failed"] for one in found)
    for one in found:
        if (processes := one.get("processes")) is not None:
            print(f"grew: {grew(processes)}, started again: {processes['restarts']}")
            is_broken |= bool(processes["restarts"] or (args.scenario == "soak" and grew(processes)))
    return 1 if is_broken else 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench load", __doc__)
    scenarios = parser.add_subparsers(dest="scenario", required=True, metavar="SCENARIO")
    for name, (text, _) in ARRIVALS.items():
        _add_flags(scenarios.add_parser(name, help=text, description=text, formatter_class=Defaults), name)
    for name, scenario in OWN.items():
        text = (scenario.__doc__ or "").split("\n\n")[0]
        scenario.add_flags(scenarios.add_parser(name, help=text, description=text, formatter_class=Defaults))
    args = parser.parse_args(argv)
    if args.scenario in ARRIVALS:
        if min(*args.rate, args.seconds, args.speed, args.variation, args.factor) <= 0.0 or args.every < 0.0:
            parser.error("rates, times, speed, factor and variation are more than 0")
        if len(args.rates) < 2 or min(args.rates) < 0.0 or not any(args.rates):
            parser.error("--rates takes at least two rates, none below 0, not all 0")
        if args.url is not None and (UNSTEERED in args.arms or args.every or args.admit is not None):
            parser.error("unsteered, --every and --admit need an instance of the benchmark's own, without --url")
        args.slo = Slo(args.slo_ttft_s, args.slo_tpot_s)
    return args


def _add_flags(parser: argparse.ArgumentParser, scenario: str) -> None:
    """Add a scenario's own flags, and those that all scenarios of arrivals share."""
    for name, flag in FLAGS.items():
        if name in ARRIVALS[scenario][1]:
            parser.add_argument(f"--{name}", **flag)
        else:
            parser.set_defaults(**{name: flag.get("default")})
    parser.add_argument("--url", help="a running instance (default: one of its own, started and stopped)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long requests come")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens a request")
    parser.add_argument(
        "--arms", nargs="+", choices=sorted(ARMS), default=["on", "off"],
        help="speculation on, off, and on under the first policy, with beat frozen",
    )  # fmt: skip
    parser.add_argument("--admit", type=int, help="requests admitted at once (default: the settings')")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between samples of the processes; 0: none")
    parser.add_argument("--slo-ttft-s", type=float, default=2.0, help="objective: time to first token")
    parser.add_argument("--slo-tpot-s", type=float, default=0.15, help="objective: time of each further token")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals")
    add_out(parser, scenario if scenario in DEFAULTS else "load")
    add_prompts_file(parser)
    parser.set_defaults(**DEFAULTS.get(scenario, {}))


def arrivals(args: argparse.Namespace, rate: float) -> list[Arrival]:
    """Make the scenario's load. Raises InvalidRequest for a bad trace."""
    match args.scenario:
        case "poisson" | "soak":
            return poisson(rate, args.seconds, args.max_tokens, args.seed)
        case "bursty":
            return gamma(rate, args.seconds, args.max_tokens, args.seed, args.variation)
        case "ramp":
            return ramp(args.rates, args.seconds, args.max_tokens, args.seed)
        case "steps" | "overload":
            return steps(part_rates(args, rate), args.seconds, args.max_tokens, args.seed)
        case "trace":
            return trace(args.trace, args.speed)
        case _:
            return [Arrival(0.0, args.max_tokens)] * args.streams


def part_rates(args: argparse.Namespace, rate: float) -> list[float]:
    """Return the rates of the parts of `steps` or of `overload`."""
    return [rate, args.factor * rate, rate] if args.scenario == "overload" else args.rates


def measure(
    url: str,
    is_own: bool,
    load: Listed[Arrival],
    rate: float,
    new: "count[int]",
    args: argparse.Namespace,
    arm: str,
) -> Figures:
    """Send one load, watch the processes meanwhile if asked for, and return its figures."""
    instance = Instance(Settings.from_env().state, INSTANCE)
    closed_s = args.seconds if args.scenario == "closed" else 0.0
    with Watcher(instance.running, args.every) if args.every else nullcontext() as watcher:
        before_s = _busy_s() if is_own else {}
        served, took_s = run(url, load, arm, new, args.texts, closed_s)
    found = figures(served, took_s, args.slo)
    if watcher is not None:
        found["processes"] = watcher.figures()
    if args.scenario in ("steps", "overload"):
        found["parts"] = parts(served, part_rates(args, rate), args.seconds, args.slo)
    if args.scenario == "overload":
        found["recovered_s"] = recovered_s(served, args.seconds / 3, args.seconds * 2 / 3)
    if is_own:
        found["busy"] = _busy(before_s, took_s)
        verifiers = own_site().deployment.nodes.live("verify")
        found["cost_errors"] = {node.name: node.info["cost_errors"] for node in verifiers}
    return found


@contextmanager
def deployment(url: str | None) -> Iterator[tuple[str, bool]]:
    """Yield the URL of the instance to load, and whether it is started and stopped here: if no URL is given."""
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
    with site.frozen("beat"):
        time.sleep(FOLLOWED_S)
        nodes = site.deployment.nodes
        nodes.set_policy(Policy(version=nodes.policy().version + 1))
        time.sleep(FOLLOWED_S)
        yield


def _busy_s() -> dict[str, float]:
    """Return the seconds that the instance's processes have worked so far, by kind."""
    found = {series(name): sums for name, sums in own_site().deployment.shared_stats.load(GROUP).items()}
    return {key[1][0]: sums[0] for key, sums in found.items() if key is not None and key[0] == BUSY.name}


def _busy(before_s: dict[str, float], took_s: float) -> dict[str, float]:
    """Return the busy share of each kind of process since then, as a mean over its processes."""
    time.sleep(REPORTED_S)
    nodes = Counter(node.kind for node in own_site().deployment.nodes.live())
    worked_s = {kind: now_s - before_s.get(kind, 0.0) for kind, now_s in _busy_s().items()}
    return {kind: round(worked_s[kind] / (took_s * nodes[kind]), 3) for kind in worked_s if nodes[kind]}


if __name__ == "__main__":
    sys.exit(main())
