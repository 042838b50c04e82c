"""`./paceline lab cooperate`: compare every way of drafting on held-out prompts of five domains.

In one process and one run, interleaved prompt by prompt in changing order: no speculation, the best
single drafter at its best fixed length (found in a pilot on prompts of their own), the generalist,
the union of all drafters, CoSine's form, the full system and the same without each of its parts;
transformers' `generate` and its assisted generation. Our own arms must all commit the same tokens;
texts that differ by transformers' rounding are counted. An arm whose setting this version does not
have is reported and left out.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listed
from pathlib import Path

from app.config import ROOT, THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from app.assembly.local import Models, load_models
from bench.help import parser as parser_of
from bench.prompts import add_prompts_file
from bench.report_header import heading
from bench.stats import median
from lab.cooperate.peers import AssistedArm, generate_arm
from lab.cooperate.report import (
    ASSISTED,
    GENERATE,
    Figures,
    Group,
    bars,
    figures,
    table,
)
from lab.cooperate.systems import PipelineArm, Run
from lab.cooperate.variants import FULL, OFF, Variant, pilot, variants

WARM_UP = "Say hello."
PEERS = (GENERATE, ASSISTED)
Arm = Callable[[list[str]], Run]


def main(argv: Listed[str] | None = None) -> int:
    """Measure, print, and write the figures with the machine named; return the exit status."""
    args = parse_args(argv)
    settings = Settings.from_env()
    models = load_models(settings)
    peers = make_peers(settings, args)
    found: Figures = {
        **heading("lab cooperate", argv),
        "drafters": list(models.guessers),
        "prompts_a_domain": args.prompts,
        "max_tokens": args.max_tokens,
        "step_s": json.loads(models.costs)["points"],
        "streams": {},
    }
    for streams in args.streams:
        found["streams"][str(streams)] = at_streams(streams, settings, models, peers, args)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")  # after each: a later one may be interrupted
    found["bars"] = bars(found["streams"])
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["bars"], indent=1))
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("lab cooperate", __doc__)
    parser.add_argument("--prompts", type=int, default=8, help="prompts of each domain")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens a request")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8], help="requests at once")
    parser.add_argument("--pilot-prompts", type=int, default=1, help="prompts of each domain for the pilot alone")
    parser.add_argument("--generalist", default="smol-general", help="the drafter that was trained on the mixture")
    parser.add_argument("--arms", nargs="+", help="only these, and the arm without speculation (default: all)")
    parser.add_argument("--no-peers", action="store_true", help="leave transformers out")
    default = ROOT / "bench" / "results" / "cooperate.json"
    parser.add_argument("--out", type=Path, default=default, help="file to write")
    add_prompts_file(parser)
    args = parser.parse_args(argv)
    if args.prompts + args.pilot_prompts > (fewest := min(map(len, args.texts.values()))):
        parser.error(f"a domain has {fewest} prompts: the pilot's are not measured on again")
    return args


def make_peers(settings: Settings, args: argparse.Namespace) -> dict[str, Arm]:
    """Make the arm of transformers' `generate`, if wanted; the assisted one needs the pilot's best
    drafter first."""
    wanted = not args.no_peers and (args.arms is None or GENERATE in args.arms)
    return {GENERATE: generate_arm(settings, args.max_tokens)} if wanted else {}


def at_streams(
    streams: int, settings: Settings, models: Models, peers: dict[str, Arm], args: argparse.Namespace
) -> Figures:
    """Run all arms on the same prompts, `streams` at once; return their figures."""
    pilots = groups({d: p[len(p) - args.pilot_prompts :] for d, p in args.texts.items()}, 1 if streams == 1 else 0)
    best, tried = best_single(settings, models, pilots, args)
    chosen, skipped = choose(variants(best, args.generalist if args.generalist in models.guessers else None), args)
    ours = {p.name: PipelineArm(p, settings, models, args.max_tokens) for p in chosen}
    arms: dict[str, Arm] = {**ours, **peers}
    if streams == 1 and best and best.drafters and not args.no_peers and (args.arms is None or ASSISTED in args.arms):
        arms[ASSISTED] = assisted(settings, best, pilots, args)
    for arm in arms.values():
        arm([WARM_UP])
    measured = groups({d: p[: args.prompts] for d, p in args.texts.items()}, streams)
    runs = interleaved(arms, measured)
    found = {"pilot": tried, "left_out": skipped, **figures(runs, measured)}
    print(table(found), flush=True)
    return found


def best_single(
    settings: Settings, models: Models, pilots: list[Group], args: argparse.Namespace
) -> tuple[Variant | None, dict[str, float]]:
    """Find the drafter and length that are fastest on the pilot's prompts; return them, and
    tokens/s of all."""
    tried = pilot(models.guessers)
    arms: dict[str, Arm] = {variant.name: PipelineArm(variant, settings, models, args.max_tokens) for variant in tried}
    if not arms or not pilots:
        return None, {}
    runs = interleaved(arms, pilots)
    rates = {name: round(median([run.tokens_per_s for run in runs[name]]), 2) for name in arms}
    return max(tried, key=lambda variant: rates[variant.name]), rates


def choose(wanted: list[Variant], args: argparse.Namespace) -> tuple[list[Variant], dict[str, str]]:
    """Return the variants that can be run, and why others cannot, by name."""
    if args.arms is not None:
        wanted = [variant for variant in wanted if variant.name in {OFF, *args.arms}]
    skipped = {one.name: f"no setting {', '.join(one.missing())} here" for one in wanted if one.missing()}
    for name, reason in skipped.items():
        print(f"left out: {name} ({reason})", flush=True)
    return [variant for variant in wanted if variant.name not in skipped], skipped


def assisted(settings: Settings, best: Variant, pilots: list[Group], args: argparse.Namespace) -> Arm:
    """Make the assisted peer with our best drafter, at the faster of the pilot's length and its own
    schedule."""
    folder = next(name for name in settings.drafters if Path(name).name == (best.drafters or ("",))[0])
    arm = AssistedArm(settings, folder, args.max_tokens)
    arm([WARM_UP])
    rates: dict[int | None, float] = {}
    for length in (None, best.length):
        arm.length = length
        rates[length] = median([arm(prompts).tokens_per_s for _, prompts in pilots])
        print(f"pilot: assisted, {length or 'own'} tokens at a time: {rates[length]:.1f} tokens/s", flush=True)
    arm.length = max(rates, key=lambda length: rates[length])
    return arm


def groups(prompts: Mapping[str, Listed[str]], streams: int) -> list[Group]:
    """Return (domain, prompts that run at once) for each measurement; `streams` 0: all at once, of
    any domain."""
    if streams == 0:
        return [("all", [prompt for of_domain in prompts.values() for prompt in of_domain])]
    return [
        (domain, [*of_domain[i : i + streams]])
        for domain, of_domain in prompts.items()
        for i in range(0, len(of_domain), streams)
    ]


def interleaved(arms: Mapping[str, Arm], measured: list[Group]) -> dict[str, list[Run]]:
    """Run every arm on every group, in turn and in changing order, so that all meet the same
    disturbances."""
    runs: dict[str, list[Run]] = {name: [] for name in arms}
    for i, (domain, prompts) in enumerate(measured):
        for name in random.Random(i).sample([*arms], len(arms)):
            runs[name].append(arms[name](prompts))
        check_same({name: runs[name][-1] for name in arms if name not in PEERS})
        shown = {name: runs[name][-1].tokens_per_s for name in (OFF, FULL) if name in runs}
        print(f"{i + 1}/{len(measured)} {domain}: {shown}", flush=True)
    return runs


def check_same(runs: Mapping[str, Run]) -> None:
    """Raise SystemExit unless our arms all committed the same tokens: a difference is a bug, not a
    figure."""
    texts = {name: run.token_ids for name, run in runs.items()}
    first = next(iter(texts))
    different = [name for name in texts if texts[name] != texts[first]]
    if different:
        raise SystemExit(f"no figures: other tokens than {first!r} from {', '.join(different)}")


if __name__ == "__main__":
    sys.exit(main())
