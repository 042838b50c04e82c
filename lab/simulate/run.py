"""`./paceline lab simulate`: simulate ways of drafting where drafters do not share the verifier's
cores.

`record` has the real target generate its texts and the real drafters guess after every token of
them; `replay` runs the real code (schedule, routes, lengths, fusion) over that log on
a virtual clock, with drafters and verifiers on machines of their own, the verifier as fast as
measured or slowed to a larger target's step.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from app.config import ROOT, THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from app.assembly.fuser import phrases
from app.assembly.local import load_models
from app.engine.weights.blocks import dense
from app.engine.weights.resolve import drafter_folder, target_folder
from app.engine.weights.tensors import stored_embedding
from app.stages.draft.protocol import Drafter
from app.stages.draft.registry import build as build_model_free
from bench.help import Defaults, count
from bench.help import parser as parser_of
from bench.prompts import add_prompts_file
from bench.report_header import heading
from bench.stats import both_bounds
from lab.cooperate.systems import by_drafter_of
from lab.cooperate.variants import (
    FULL,
    LENGTHS,
    OFF,
    SINGLE,
    Variant,
    asked_cells,
    crowds,
    fixed,
    overlaps,
    variants,
)
from lab.simulate.beat import FROZEN, SCENES, replay_beat, replay_frozen
from lab.simulate.experts import CORRELATION, homes_of, with_experts
from lab.simulate.load import replay_load
from lab.simulate.log import DEPTH, Log, lengthened, record, repeated, with_stated_drafters
from lab.simulate.machines import build
from lab.simulate.models import text_of
from lab.simulate.shared import replay_shared
from lab.simulate.world import MakeModelFree, Setting, World

RESULTS = ROOT / "bench" / "results"
RECORDING = ROOT / "lab" / "data" / "four.json.gz"  # of the four drafters that ship
COSTS = ROOT / "lab" / "costs"
BASES = (OFF, SINGLE, "generalist", "cosine", "pace without tables", FULL)  # ways that others are set against


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold the figures of one way of drafting; busy parts are of the whole time."""

    stream_tokens_per_s: float  # mean over texts of tokens / the time from admission to the last one
    tokens_per_s: float  # of all verifiers together
    accepted_length: float  # mean over the domains of tokens a round
    drafted: float  # tokens verified, a round
    verifier_busy: float
    drafter_busy: float  # the busiest node's
    model_rounds: float  # part of the rounds after a text's first token for which a model drafter was asked
    asked: float  # model drafters asked of those there are, where there was a choice
    seconds: float
    by_drafter: dict[str, tuple[int, int]]  # draft tokens verified, and accepted
    rates: dict[int, float]  # tokens / the time from admission to the last one, by text


def main(argv: Listed[str] | None = None) -> int:
    """Record or replay, and write the figures; return the exit status."""
    args = parse_args(argv)
    if args.command == "record":
        # On a CPU a drafter returns whole chains, on a GPU one guess at a time.
        settings = Settings.from_env().model_copy(update={"draft_device": "cpu"})
        prompts = {domain: of_domain[: args.prompts] for domain, of_domain in args.texts.items()}
        log = record(settings, load_models(settings), prompts, args.max_tokens)
        log.write(args.log)
        print(f"{args.log}: {len(log.texts)} texts, {', '.join(log.drafters)}")
        return 0
    log = Log.read(args.log)
    log = with_target(log)
    if args.costs:
        log = log.model_copy(update={"costs": args.costs.read_text()})
    if args.command != "shared" and args.drafter_ms:
        log = with_stated_drafters(log, 1e-3 * args.drafter_ms)
    replayed = RUNS[args.command](log, args)
    found = heading("lab simulate", argv) | replayed
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("lab simulate", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record", help="write a log of real drafts; loads the models", formatter_class=Defaults)
    one.add_argument("--prompts", type=count, default=8, help="of each domain")
    one.add_argument("--max-tokens", type=count, default=64, help="tokens a text")
    add_prompts_file(one)
    two = commands.add_parser("replay", help="run every way of drafting over a log", formatter_class=Defaults)
    two.add_argument("--streams", type=count, nargs="+", default=[1, 8], help="sequences at once")
    two.add_argument("--generalist", default="smol-general", help="the drafter that was trained on the mixture")
    two.add_argument(
        "--experts",
        type=float,
        nargs=2,
        metavar=("HOME", "ELSEWHERE"),
        help="instead of the recorded drafters, ones whose tokens are right with these chances (the generalist: "
        "their mean)",
    )
    two.add_argument("--correlation", type=float, default=CORRELATION, help="of right tokens between these, 0 to 1")
    two.add_argument("--repeats", type=count, default=1, help="times that each text comes; a longer run")
    two.add_argument("--drafter-slowdown", type=float, nargs="+", default=[1.0], help="of the model drafters")
    two.add_argument("--ways", nargs="+", help="of the ways, only these (default: all)")
    instead = two.add_mutually_exclusive_group()
    instead.add_argument("--overlaps", action="store_true", help="instead, ways to overlap drafting and verifying")
    instead.add_argument("--crowds", action="store_true", help="instead, 1, 2 and 4 drafters that share tokens")
    summary = "fixed draft lengths and the adaptive one from idle to overload"
    three = commands.add_parser("load", help=summary, formatter_class=Defaults)
    three.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.3, 0.6, 1.0, 1.5, 2.5], help="requests/s")
    three.add_argument("--seconds", type=float, default=120.0, help="how long requests come")
    three.add_argument("--lengths", type=count, nargs="+", default=[1, 2, 3, 5, 7], help="fixed draft lengths")
    three.add_argument("--long", type=count, nargs="+", help="tokens before every other prompt, these in turn")
    three.add_argument("--drafter-slowdown", type=float, default=1.0, help="of the model drafters")
    three.add_argument("--local", action="store_true", help="one process on the verifier's cores, no network")
    summary = "FASER part by part, on one device that the target and its drafter share"
    four = commands.add_parser("shared", help=summary, formatter_class=Defaults)
    four.add_argument("--costs", type=Path, default=COSTS / "stated-32b.json", help="of target, drafter and device")
    four.add_argument("--kappa", type=float, help="slowdown by the other side's reading (default: the costs' own)")
    four.add_argument("--drafter", default="smol-general", help="of the recording")
    four.add_argument("--acceptance", type=float, help="chance that its token is right (default: as recorded)")
    four.add_argument("--streams", type=count, nargs="+", default=[1, 16, 128], help="sequences at once")
    four.add_argument("--swing", type=float, nargs=2, default=[2.0, 40.0], metavar=("LOW", "HIGH"), help="requests/s")
    four.add_argument("--drafter-slowdown", type=float, default=1.0, help="of the drafter")
    four.add_argument("--seconds", type=float, default=60.0, help="of valley, peak and valley")
    summary = "what the controller's ticks are worth: bursts, ramps, slow and silent drafters, long prompts"
    five = commands.add_parser("beat", help=summary, formatter_class=Defaults)
    five.add_argument("--scenes", nargs="+", choices=SCENES, default=[*SCENES], help="of the loads, only these")
    six = commands.add_parser(
        "frozen", help="fields of the policy held at values, load by load", formatter_class=Defaults
    )
    six.add_argument("--fields", nargs="+", choices=[*FROZEN], default=[*FROZEN], help="of the policy")
    six.add_argument("--long", action="store_true", help="with long prompts alone")
    six.add_argument("--plain", action="store_true", help="without drafts")
    for command in (five, six):
        command.add_argument("--rates", type=float, nargs="+", default=[1.0], help="requests/s; beat: the lowest")
        command.add_argument("--seconds", type=float, default=30.0, help="how long requests come")
        command.add_argument("--seeds", type=count, default=2, help="times that each load comes, at other moments")
        command.add_argument("--drafter-slowdown", type=float, default=1.0, help="of the model drafters")
    for command, slowdowns in ((two, [1.0, 5.0, 20.0]), (three, [1.0]), (five, [1.0]), (six, [1.0])):
        command.add_argument("--slowdown", type=float, nargs="+", default=slowdowns, help="of the verifier")
        command.add_argument("--costs", type=Path, help="another target's step costs, as JSON (default: the recorded)")
        command.add_argument(
            "--drafter-ms", type=float, help="a guess of every drafter, in any batch, instead of the recorded"
        )
        command.add_argument("--verifiers", type=count, default=1, help="how many there are")
    names = ("simulate", "simulate-load", "simulate-shared", "simulate-beat", "simulate-frozen")
    for command, name in zip((two, three, four, five, six), names, strict=True):
        command.add_argument("--hop-ms", type=float, default=0.5, help="one way between two machines")
        command.add_argument("--seed", type=int, default=0, help="of the texts' order and the arrivals")
        command.add_argument("--out", type=Path, default=RESULTS / f"{name}.json", help="file to write")
        command.add_argument("--log", type=Path, default=RECORDING, help="the recording")
    one.add_argument("--log", type=Path, default=Path("drafts.json.gz"), help="the recording")
    return parser.parse_args(argv)


def replay(log: Log, args: argparse.Namespace) -> dict[str, Any]:
    """Run every way of drafting in every setting."""
    log = repeated(log, args.repeats)
    found: dict[str, Any] = {"texts": len(log.texts)}
    if args.experts:
        home, elsewhere = args.experts
        homes = homes_of(acceptance(log), args.generalist)
        log = with_experts(log, home, elsewhere, homes, args.generalist, args.seed, args.correlation)
        found["experts"] = {"home": home, "elsewhere": elsewhere, "homes": homes}
    found |= {
        "acceptance": acceptance(log),
        "tokens_a_round": matrix(log),
        "settings": [],
    }
    hop_s = 1e-3 * args.hop_ms
    for slowdown, drafter_slowdown, streams in product(args.slowdown, args.drafter_slowdown, args.streams):
        setting = Setting(streams, args.verifiers, slowdown, hop_s, args.seed, drafter_slowdown=drafter_slowdown)
        fresh = partial(model_free, log)
        wanted = overlaps() if args.overlaps else crowds() if args.crowds else None
        wanted = wanted or ways(log, setting, args.generalist, fresh)
        chosen = [way for way in wanted if args.ways is None or way.name in args.ways]
        outcomes = outcomes_of(log, chosen, setting, fresh)
        rounded = {name: _rounded(outcome) for name, outcome in outcomes.items()}
        stated = {name: own for name, own in asdict(setting).items() if name not in ("guesser", "planner", "reshape")}
        found["settings"].append({**stated, "ways": rounded, "over": over(outcomes)})
        print(table(setting, outcomes), flush=True)
    return found


def _load(log: Log, args: argparse.Namespace) -> dict[str, Any]:
    log = lengthened(log, args.long, args.seed) if args.long else log
    return replay_load(log, args, lambda: model_free(log))


def _shared(log: Log, args: argparse.Namespace) -> dict[str, Any]:
    if args.acceptance is not None:
        log = with_experts(log, args.acceptance, args.acceptance, {}, args.drafter, args.seed, CORRELATION)
    return replay_shared(log, args, lambda: model_free(log))


def with_target(log: Log) -> Log:
    """Return the recording with the settings' target, by whose embedding CoSine's routing rates, if that fits."""
    folder = target_folder(Settings.from_env())
    fits = len(dense(stored_embedding(folder))) == log.vocab_size
    return log.model_copy(update={"target": folder}) if fits else log


def _beat(log: Log, args: argparse.Namespace) -> dict[str, Any]:
    return replay_beat(log, args, lambda: model_free(log))


def _frozen(log: Log, args: argparse.Namespace) -> dict[str, Any]:
    return replay_frozen(log, args, lambda: model_free(log))


def model_free(log: Log) -> list[Drafter]:
    """Return the model-free drafters, new but for the phrases: these never change, and PACELINE_PHRASES names them."""
    settings = Settings.from_env()
    if settings.phrases == "none":
        return build_model_free()
    return [*build_model_free(), phrases(drafter_folder(settings.phrases), log.vocab_size, settings.home)]


def outcomes_of(log: Log, wanted: Listed[Variant], setting: Setting, fresh: MakeModelFree) -> dict[str, Outcome]:
    """Simulate every variant in one setting; return the outcomes by variant's name."""
    return {variant.name: simulate(log, variant, setting, fresh) for variant in wanted}


def over(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, list[float]]]:
    """Return each way's rate over some others': the geometric mean over the texts, paired, and its bounds.

    A text's rate is what its client sees, so that with several streams these are not the quotients of tokens/s.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for base in (name for name in BASES if name in outcomes):
        old = outcomes[base].rates
        others = {name: [o.rates[text] for text in old] for name, o in outcomes.items() if name != base}
        found[base] = {name: both_bounds(rates, [*old.values()]) for name, rates in others.items()}
    return found


def ways(log: Log, setting: Setting, generalist: str, fresh: MakeModelFree) -> list[Variant]:
    """Return the variants to compare; the best single drafter is found among all lengths in this very
    setting."""
    singles = [fixed(name, length) for name in log.drafters for length in LENGTHS]
    rates = {variant.name: simulate(log, variant, setting, fresh).tokens_per_s for variant in singles}
    best = max(singles, key=lambda variant: rates[variant.name]) if singles else None
    return [
        *variants(best, generalist if generalist in log.drafters else None),
        Variant("cosine routing, trees", {"routing": "cosine"}),
        Variant("union, tokens shared", {"routing": "all", "fusion": "token"}),
    ]


def simulate(log: Log, variant: Variant, setting: Setting, fresh: MakeModelFree) -> Outcome:
    """Run every text of the log once, drafted as the variant says."""
    world = build(log, variant, setting, fresh)
    world.run()
    return _outcome(world)


def acceptance(log: Log) -> dict[str, dict[str, float]]:
    """Return, by drafter and domain, how often its first token is right, over every position but
    the first."""
    found: dict[str, dict[str, float]] = {}
    for name, drafter in log.drafters.items():
        counts: dict[str, list[int]] = {}
        for text, chains in zip(log.texts, drafter.guesses, strict=True):
            for token, chain in list(zip(text.tokens, chains, strict=True))[1:]:
                counts.setdefault(text.domain, []).append(int(bool(chain) and chain[0].token == token))
        found[name] = {domain: round(sum(own) / len(own), 3) for domain, own in counts.items()}
    return found


def matrix(log: Log) -> dict[str, dict[str, float]]:
    """Return the most tokens a round that drafts could give, by drafter and domain: drafts of DEPTH, all verified.

    "any" has the guess that is right wherever some drafter has one: the bound of any fusion of these drafters.
    """
    wanted = {name: [name] for name in log.drafters} | {"any": [*log.drafters]}
    return {name: _tokens_a_round(log, names) for name, names in wanted.items()}


def _tokens_a_round(log: Log, names: list[str]) -> dict[str, float]:
    counts: dict[str, list[int]] = {}
    for i, text in enumerate(log.texts):
        chains = [log.drafters[name].guesses[i] for name in names]
        right = [any(own[at] and own[at][0].token == token for own in chains) for at, token in enumerate(text.tokens)]
        at, rounds = 1, 0
        while at < len(right):
            run = next((n for n, is_right in enumerate(right[at : at + DEPTH]) if not is_right), DEPTH)
            at, rounds = at + run + 1, rounds + 1
        for domain in (text.domain, "all"):
            own = counts.setdefault(domain, [0, 0])
            own[0] += len(right) - 1
            own[1] += rounds
    return {domain: round(tokens / rounds, 3) for domain, (tokens, rounds) in sorted(counts.items())}


def table(setting: Setting, outcomes: dict[str, Outcome]) -> str:
    """Return one setting as a Markdown table."""
    base = outcomes[OFF].tokens_per_s
    lines = [
        f"{setting.streams} streams, {setting.verifiers} verifier(s) x{setting.slowdown:g} slower, "
        f"drafters x{setting.drafter_slowdown:g}",
        "| way | tokens/s a stream | tokens/s | / off | tokens a round | verified | verifier, drafter busy "
        "| rounds that asked models | models asked of several | accepted, by drafter |",
        "|---" * 10 + "|",
    ]
    for name, o in outcomes.items():
        title, part = asked_cells(name, o.model_rounds)
        busy = f"{o.verifier_busy:.0%}, {o.drafter_busy:.0%}"
        accepted = ", ".join(f"{drafter} {right}" for drafter, (_, right) in sorted(o.by_drafter.items()))
        lines.append(
            f"| {title} | {o.stream_tokens_per_s:.1f} | {o.tokens_per_s:.1f} "
            f"| {o.tokens_per_s / base:.2f} | {o.accepted_length:.2f} | {o.drafted:.2f} | {busy} "
            f"| {part} | {o.asked:.2f} | {accepted} |"
        )
    return "\n".join(lines) + "\n"


def _outcome(world: World) -> Outcome:
    ends = [world.store.snapshot(record.id) for record in world.ended]
    last_s = max(end.stats.last_token_s or 0.0 for end in ends)
    rates = {
        text_of(end.record.id): len(end.tokens) / ((end.stats.last_token_s or 0.0) - end.record.created_s)
        for end in sorted(ends, key=lambda end: text_of(end.record.id))
    }
    lengths: dict[str, list[int]] = {}
    for end in ends:
        own = lengths.setdefault(world.log.texts[text_of(end.record.id)].domain, [0, 0])
        own[0] += len(end.tokens)
        own[1] += end.stats.rounds
    rounds = sum(count for _, count in lengths.values())
    asked = sum((v.segment.speculation.router.asked_rounds for v in world.verifiers), start=Counter[str]())
    return Outcome(
        sum(rates.values()) / len(rates),
        sum(len(end.tokens) for end in ends) / last_s,
        sum(tokens / count for tokens, count in lengths.values()) / len(lengths),
        sum(end.stats.drafted for end in ends) / rounds,
        sum(verifier.target.busy_s for verifier in world.verifiers) / last_s / len(world.verifiers),
        max((world.network.machines[box].busy_s / last_s for box in world.nodes), default=0.0),
        world.model_rounds,
        asked.total() / rounds,
        last_s,
        by_drafter_of(ends),
        rates,
    )


def _rounded(outcome: Outcome) -> dict[str, Any]:
    figures = {name: own for name, own in asdict(outcome).items() if name != "rates"}
    return {name: round(own, 4) if isinstance(own, float) else own for name, own in figures.items()}


RUNS = {"replay": replay, "load": _load, "shared": _shared, "beat": _beat, "frozen": _frozen}

if __name__ == "__main__":
    sys.exit(main())
