"""`./paceline lab hosts`: run drafters on hosts of their own, live, and hold the simulation against it.

`live` starts a deployment for each way of drafting: the verifier on one core, drafters in network
namespaces on the other, on cables of a stated rate that hold bytes back. All arms are asked the same
prompts in turn, in changing order, and must generate the same texts. `predict` simulates the very
arms of such a run over a recording made on this machine (`lab simulate record`, same prompts).
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Sequence as Listed
from itertools import accumulate
from pathlib import Path
from typing import Any

from app.config import ROOT, THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from app.errors import PacelineError
from app.request import GenerateRequest
from app.store.protocol import Snapshot
from bench.help import Defaults
from bench.help import parser as parser_of
from bench.prompts import Prompts, add_prompts_file
from bench.report_header import heading
from lab.cooperate.variants import OFF, Variant, variants
from lab.hosts.deployment import ArmDeployment, Place, arms_running
from lab.hosts.network import MOST_HOSTS, lacking
from lab.hosts.predict import parted, predict
from lab.hosts.report import check_same, deviations, figures, fingerprint, table
from lab.simulate.log import Log
from lab.simulate.run import with_target

PACE = "pace"
KNOWN = (
    "vanilla",
    "specinfer",
    "cosine",
    "cosine without sharing",
    "cosine without routing",
    "cosine without fusion",
    "cosine without control",
    "faser without overlap",
    "faser",
    "pace without tables",
)
SHORT = Variant("vanilla of 1", {"plan": "vanilla", "lengths": "fixed:1"})  # the best fixed length where rows cost
RESULTS = ROOT / "bench" / "results"
Block = list[tuple[str, str]]  # domain and prompt of the requests that an arm is asked before the next arm's turn


def main(argv: Listed[str] | None = None) -> int:
    """Run live or predict, print, and write the figures; return the exit status."""
    args = parse_args(argv)
    if args.command == "predict":
        log = with_target(Log.read(args.log))
        found = json.loads(args.live.read_text())
        found["predicted"] = {"command": heading("lab hosts", argv)["command"], **predict(log, found, arms())}
        found["deviations"] = deviations(found)
        print(table(found))
        args.live.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts and processes are removed on the way out
    if why := lacking():
        print(f"paceline: hosts of their own: {why}", file=sys.stderr)
        return 2
    try:
        found = {**heading("lab hosts", argv), **live(args)}
    except (OSError, TimeoutError, RuntimeError, PacelineError) as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 1
    print(table(found))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("lab hosts", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("live", help="needs root, iproute2 and two cores", formatter_class=Defaults)
    one.add_argument("--hosts", type=int, default=2, help="of drafters: PACELINE_DRAFTERS are dealt to them in turn")
    one.add_argument("--streams", type=int, default=1, help="requests at once")
    one.add_argument("--rate", type=float, help="requests/s, at Poisson times, instead of so many at once")
    one.add_argument("--prompts", type=int, default=4, help="prompts of each domain")
    one.add_argument("--warm-up", type=int, default=1, help="prompts of each domain before, uncounted")
    one.add_argument("--blocks", type=int, default=2, help="turns of each arm")
    one.add_argument("--max-tokens", type=int, default=64, help="tokens a request")
    one.add_argument("--hop-ms", type=float, default=0.75, help="by which a cable holds bytes back, one way")
    one.add_argument("--mbit", type=float, default=100.0, help="a cable's rate, Mbit/s")
    one.add_argument("--arms", nargs="+", choices=[arm.name for arm in arms()], help="only these (default: all)")
    one.add_argument("--logs", type=Path, help="keep the processes' logs in this folder (default: nowhere)")
    one.add_argument("--out", type=Path, default=RESULTS / "hosts.json", help="file to write")
    add_prompts_file(one)
    two = commands.add_parser("predict", help="simulate the arms of a live run", formatter_class=Defaults)
    two.add_argument("--live", type=Path, default=RESULTS / "hosts.json", help="its file: the prediction is added")
    two.add_argument("--log", type=Path, required=True, help="recording of the same prompts, pinned as the run was")
    args = parser.parse_args(argv)
    if args.command == "live":
        fewest = min(len(of_domain) for of_domain in args.texts.values())
        if min(args.prompts, args.blocks, args.streams) < 1 or not 0 <= args.warm_up <= fewest - args.prompts:
            parser.error(f"prompts, blocks and streams are at least 1, and a domain has {fewest} prompts in all")
        rates = (args.mbit, args.mbit if args.rate is None else args.rate)
        if not 1 <= args.hosts <= MOST_HOSTS or args.hop_ms < 0.0 or min(rates) <= 0.0:
            parser.error(f"1 to {MOST_HOSTS} hosts; a hop is at least 0, a rate more")
    return args


def arms() -> list[Variant]:
    """Return the ways of drafting that are compared."""
    known = {variant.name: variant for variant in variants(None, None)}
    return [Variant(OFF, {"plan": "off"}), SHORT, *(known[name] for name in KNOWN), Variant(PACE)]


def live(args: argparse.Namespace) -> dict[str, Any]:
    """Ask all arms the same; return their figures. Raises SystemExit where texts differ."""
    settings = Settings.from_env()
    wanted = [arm for arm in arms() if args.arms is None or arm.name in (OFF, *args.arms)]
    place = place_of(settings, args)
    os.sched_setaffinity(0, {place.cores[1]})  # where clients are, too: the verifier has its core to itself
    warm_up, blocks = asked(args.texts, args.prompts, args.warm_up, args.blocks)
    times = None if args.rate is None else [arrivals(args.rate, block, i) for i, block in enumerate([warm_up, *blocks])]
    ends: dict[str, list[list[Snapshot]]] = {arm.name: [] for arm in wanted}
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) if args.logs is None else args.logs
        logs.mkdir(parents=True, exist_ok=True)
        own = {arm.name: settings.changed(**arm.settings) for arm in wanted}
        unfused = [arm.name for arm in wanted if arm.without == "fusion"]
        with arms_running(own, place, logs, unfused) as (opened, hop_ms):
            print(f"{len(opened)} deployments; a hop takes {hop_ms:.2f} ms", flush=True)
            for number, block in enumerate([warm_up, *blocks]):
                for name in random.Random(number).sample([*opened], len(opened)):
                    ends[name].append(turn(opened[name], block, args, None if times is None else times[number]))
                check_same({name: own[-1] for name, own in ends.items()})
                print(f"block {number} of {len(blocks)}", flush=True)
            nodes = {name: arm.seen for name, arm in opened.items()}
            means = {name: arm.mean_ms for name, arm in opened.items()}
            model_rounds = {name: arm.model_rounds for name, arm in opened.items()}
    counted = {name: own[1:] for name, own in ends.items()}
    return {
        "place": {
            "nodes": [[Path(folder).name for folder in node] for node in place.nodes],  # drafters go by that name
            "held_back_ms": place.hop_ms,
            "hop_ms": round(hop_ms, 4),
            "mbit": args.mbit,
        },
        "streams": args.streams,
        "texts": {
            "prompts": args.prompts,
            "warm_up": args.warm_up,
            "blocks": args.blocks,
            "max_tokens": args.max_tokens,
            **({} if times is None else {"rate": args.rate, "arrivals_s": times}),
        },
        "fingerprint": fingerprint([end for block in counted[OFF] for end in block]),
        "arms": {name: {**own, "model_rounds": model_rounds[name]} for name, own in figures(counted, OFF).items()},
        "nodes": nodes,
        "mean_ms": means,
    }


def arrivals(rate: float, block: Block, seed: int) -> list[float]:
    """Return a second for each request of a block: Poisson times of this rate."""
    draw = random.Random(seed)
    return [round(at_s, 4) for at_s in accumulate(draw.expovariate(rate) for _ in block)]


def turn(
    arm: ArmDeployment, block: Block, args: argparse.Namespace, arrivals_s: Listed[float] | None
) -> list[Snapshot]:
    """Wake an arm, ask it a block, and let it sleep again."""
    requests = [GenerateRequest(prompt=prompt, max_tokens=args.max_tokens) for _, prompt in block]
    arm.wake()
    try:
        return arm.ask(requests, args.streams, arrivals_s)
    finally:
        arm.sleep()


def place_of(settings: Settings, args: argparse.Namespace) -> Place:
    """Deal the drafters to hosts and choose the cores. Raises RuntimeError where there are too few of either."""
    if len(settings.drafters) < args.hosts:
        raise RuntimeError(f"{args.hosts} hosts of drafters, and PACELINE_DRAFTERS names {len(settings.drafters)}")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError("needs two cores: the verifier's and the drafters'")
    nodes = tuple(settings.drafters[i :: args.hosts] for i in range(args.hosts))
    return Place(nodes, args.hop_ms, 1e6 * args.mbit, (cores[1], cores[0]))


def asked(prompts: Prompts, count: int, warm_up: int, blocks: int) -> tuple[Block, list[Block]]:
    """Return the warming-up requests and the blocks of counted ones, the domains in turn in each."""
    return in_turn(prompts, range(count, count + warm_up)), parted(in_turn(prompts, range(count)), blocks)


def in_turn(prompts: Prompts, numbers: range) -> Block:
    """Return these prompts of each domain, the domains in turn."""
    return [(domain, of_domain[i]) for i in numbers for domain, of_domain in prompts.items()]


if __name__ == "__main__":
    sys.exit(main())
