"""`./paceline lab ways`: compare ways of drafting over the same requests, in one of three places.

`--in process` has a pipeline for each way in this process. `--in simulated` replays a recording on a virtual clock,
with drafters and verifiers on machines of their own. `--in deployed` starts a deployment for each way: the verifier on
one core, drafters in network namespaces on the other, on cables that hold bytes back. Ways take turns block by block,
and must generate the same texts. `--like` fits a simulation to a deployed result of the same requests and flags.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import replace
from pathlib import Path

from app.config import ROOT, THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from app.assembly.local import load_models
from app.errors import PacelineError
from app.store.protocol import Snapshot
from bench.help import count
from bench.help import parser as parser_of
from bench.prompts import add_prompts_file
from bench.report_header import heading
from lab import simulated
from lab.deployed import deployment, remembered
from lab.deployed.deployment import Place
from lab.deployed.network import MOST_HOSTS, lacking
from lab.deployed.paced_verifier import MOST_LATE
from lab.fit import fitted, place_of
from lab.load import Block, Load, Runner
from lab.process import PipelineRunner
from lab.report import Figures, check_same, compared, figures, fingerprint, table
from lab.simulate.log import Log, lengthened, with_stated_drafters
from lab.simulate.world import Setting
from lab.ways import DEFAULT, FORMS, OFF, PACE, WAYS, chosen

IN = ("process", "simulated", "deployed")


def main(argv: Listed[str] | None = None) -> int:
    args = parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts and processes are removed on the way out
    try:
        found = {**heading("lab ways", argv), **PLACES[args.place](args)}
    except (OSError, TimeoutError, RuntimeError, ValueError, PacelineError) as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 1
    if other := args.like or args.vs:
        found["compared"] = {"with": str(other), **compared(found, json.loads(other.read_text()))}
    print(table(found))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    if late := late_ways(found["ways"]):
        print(f"paceline: more than {MOST_LATE:.0%} of the steps took longer than stated: {late}", file=sys.stderr)
    return int(bool(late))


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    parser = parser_of("lab ways", __doc__, f"ways: {'; '.join(WAYS)}; {FORMS}")
    parser.add_argument("--in", dest="place", choices=IN, required=True, help="where the ways run")
    parser.add_argument(
        "--ways", nargs="+", default=[*DEFAULT], metavar="NAME", help=f"(default: {'; '.join(DEFAULT)})"
    )
    parser.add_argument("--over", nargs="+", default=[OFF, PACE], metavar="NAME", help="that the others are divided by")
    parser.add_argument("--streams", type=count, default=1, help="requests at once")
    parser.add_argument("--rates", type=float, nargs="+", help="requests/s in turn, instead of streams")
    parser.add_argument("--seconds", type=float, default=30.0, help="that a block with --rates lasts")
    parser.add_argument("--prompts", type=count, default=4, help="of each domain")
    parser.add_argument("--warm-up", type=int, default=1, help="prompts of each domain before, uncounted")
    parser.add_argument("--blocks", type=count, default=2, help="turns of each way")
    parser.add_argument("--max-tokens", type=count, default=64, help="tokens a request")
    parser.add_argument("--seed", type=int, default=0, help="of the requests' order, times and noise")
    parser.add_argument("--vs", type=Path, help="result of the same requests to compare with")
    parser.add_argument("--out", type=Path, help="file to write")
    add_prompts_file(parser)
    parser.add_argument("--hop-ms", type=float, help="one way (simulated, deployed; default: 0.5, with --paced 0)")
    two = parser.add_argument_group("simulated")
    two.add_argument("--log", type=Path, default=ROOT / "lab" / "data" / "four.json.gz", help="the recording")
    two.add_argument("--costs", type=Path, help="a stated target's step costs; all else costs what --live has")
    two.add_argument("--live", type=Path, help=f"what Python and messages take (default: {simulated.LIVE.name})")
    two.add_argument("--slowdown", type=float, default=1.0, help="of the target")
    two.add_argument("--drafter-slowdown", type=float, default=1.0, help="of the model drafters")
    two.add_argument("--drafter-ms", type=float, help="of a guess of each drafter in any batch (default: the recorded)")
    two.add_argument("--verifiers", type=count, default=1, help="how many there are")
    two.add_argument("--local", action="store_true", help="one process on the verifier's cores, no network")
    two.add_argument("--long", type=count, nargs="+", help="random tokens before every other prompt, these in turn")
    two.add_argument("--like", type=Path, help="a deployed result to compare with, and without --costs to fit")
    three = parser.add_argument_group("deployed (needs root, iproute2 and two cores)")
    three.add_argument("--hosts", type=count, default=2, help="to which PACELINE_DRAFTERS are dealt in turn")
    three.add_argument(
        "--paced", type=Path, help="step costs that the target takes its time by: drafters on this machine, no root"
    )
    three.add_argument(
        "--remember", action="store_true", help="where it cannot keep that pace: it generates each text once, before"
    )
    three.add_argument("--temperature", type=float, default=0.0, help="of all requests, with the same noise each time")
    three.add_argument("--mbit", type=float, default=100.0, help="a cable's rate, Mbit/s")
    three.add_argument("--logs", type=Path, help="keep the processes' logs in this folder")
    args = parser.parse_args(argv)
    if args.remember and not args.paced or args.live and not args.costs:
        parser.error("--remember is for --paced, --live for --costs")
    args.live = args.live or simulated.LIVE
    if args.hop_ms is None:
        args.hop_ms = 0.0 if args.paced else 0.5
    if args.hosts > MOST_HOSTS or min(args.hop_ms, args.warm_up) < 0 or min([args.mbit, *(args.rates or ())]) <= 0.0:
        parser.error(f"there are at most {MOST_HOSTS} hosts; a hop and the warm-up are at least 0, rates are more")
    return args


def in_process(args: argparse.Namespace) -> Figures:
    settings = Settings.from_env()
    ways = chosen(args.ways, map(name_of, settings.drafters))
    models = load_models(settings)
    runners = {way.name: PipelineRunner(way, settings, models, args.max_tokens) for way in ways}
    return measured(runners, load_of(args).of(args.texts), args.over)


def in_simulation(args: argparse.Namespace) -> Figures:
    log = simulated.with_target(recording(args))
    ways, load = chosen(args.ways, log.drafters), load_of(args).of(simulated.prompts_of(log))
    setting = Setting(
        args.streams, args.verifiers, args.slowdown, 1e-3 * args.hop_ms, args.seed, args.local, args.drafter_slowdown
    )
    like = json.loads(args.like.read_text()) if args.like else None
    if args.costs:
        setting = simulated.with_live_costs(setting, args.live)
    if like and not args.costs:
        setting = fitted(log, like, place_of(like, args.streams), load)
    names = ("slowdown", "cores", "hop_s", "host_s", "trees_s", "here_s", "search_s", "mail_s", "jobs_s")
    found = {name: getattr(setting, name) for name in names}
    runners = {way.name: simulated.SimulatedRunner(way, log, setting) for way in ways}
    return {"setting": found, **measured(runners, load, args.over)}


def in_deployment(args: argparse.Namespace) -> Figures:
    if (why := lacking()) and not args.paced:
        raise RuntimeError(f"hosts of their own: {why}")
    settings = Settings.from_env()
    ways = chosen(args.ways, map(name_of, settings.drafters))
    place = place_on(settings, args)
    fields = {"max_tokens": args.max_tokens, "temperature": args.temperature, "seed": args.seed}
    if (core := place.cores[1]) is not None:
        os.sched_setaffinity(0, {core})  # where clients are, too: the verifier has its core to itself
    with tempfile.TemporaryDirectory() as folder:
        logs = args.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        if args.remember:
            prompts = {domain: own[: args.prompts + args.warm_up] for domain, own in args.texts.items()}
            texts = remembered.generated(settings, prompts, args.paced.read_text(), **fields)
            file = logs / "texts.json"
            file.write_bytes(remembered.TEXTS.dump_json(texts))
            place = replace(place, texts=file)
        with deployment.opened(ways, settings, place, logs, fields) as (runners, hop_ms):
            nodes = [[name_of(drafter) for drafter in node] for node in place.nodes]
            found = {"nodes": nodes, "hop_ms": round(hop_ms, 4)}
            if args.paced:
                found |= {"paced": args.paced.name, "cores": len(os.sched_getaffinity(0))}
            else:
                found |= {"held_back_ms": args.hop_ms, "mbit": args.mbit}
            return {"place": found, **measured(runners, load_of(args).of(args.texts), args.over)}


PLACES = dict(zip(IN, (in_process, in_simulation, in_deployment), strict=True))


def measured(runners: Mapping[str, Runner], load: Listed[Block], over: Listed[str]) -> Figures:
    """Run all ways on all blocks, in turn and in changing order; the first block is not counted.

    Raises SystemExit where two ways generate different texts.
    """
    ends: dict[str, list[list[Snapshot]]] = {name: [] for name in runners}
    for number, block in enumerate(load):
        for name in random.Random(number).sample([*runners], len(runners)):
            ends[name].append(runners[name].run(block))
        check_same({name: own[-1] for name, own in ends.items()})
        print(f"block {number} of {len(load) - 1}", file=sys.stderr, flush=True)
    counted = {name: own[1:] for name, own in ends.items()}
    found = figures(load[1:], counted, over)
    return {
        "streams": load[0].streams,
        "fingerprint": fingerprint(counted[OFF]),
        "ways": {name: {**own, **runners[name].report()} for name, own in found.items()},
    }


def late_ways(ways: Figures) -> str:
    """List the ways of whose paced steps too many were late, with their part."""
    parts = {name: own["paced"]["late"] / max(1, own["paced"]["steps"]) for name, own in ways.items() if "paced" in own}
    return ", ".join(f"{name} {part:.1%}" for name, part in parts.items() if part > MOST_LATE)


def load_of(args: argparse.Namespace) -> Load:
    return Load(args.prompts, args.warm_up, args.blocks, args.streams, args.seed, tuple(args.rates or ()), args.seconds)


def recording(args: argparse.Namespace) -> Log:
    log = Log.read(args.log)
    texts = tuple(text.model_copy(update={"tokens": text.tokens[: args.max_tokens]}) for text in log.texts)
    log = log.model_copy(update={"texts": texts})
    if args.costs:
        log = simulated.with_live_drafters(log.model_copy(update={"costs": args.costs.read_text()}), args.live)
    log = with_stated_drafters(log, 1e-3 * args.drafter_ms) if args.drafter_ms else log
    return lengthened(log, args.long, args.seed) if args.long else log


def place_on(settings: Settings, args: argparse.Namespace) -> Place:
    """Deal the drafters to hosts and choose the cores. Raises RuntimeError where there are too few of either."""
    if len(settings.drafters) < args.hosts:
        raise RuntimeError(f"{args.hosts} hosts of drafters, and PACELINE_DRAFTERS names {len(settings.drafters)}")
    nodes = tuple(settings.drafters[i :: args.hosts] for i in range(args.hosts))
    if args.paced:
        return Place(nodes, args.hop_ms, paced=args.paced)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError("it needs two cores: the verifier's and the drafters'")
    return Place(nodes, args.hop_ms, 1e6 * args.mbit, (cores[1], cores[0]))


def name_of(drafter: str) -> str:
    return Path(drafter).name


if __name__ == "__main__":
    sys.exit(main())
