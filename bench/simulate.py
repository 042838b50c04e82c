"""`./paceline bench simulate`: routing and fusion where drafters do not share the verifier's cores, by simulation.

`record` has the real target say its texts and the real drafters guess after every token of them; `replay` runs
policies over that log with drafters and verifiers on machines of their own (`bench/simulate_events.py`), the verifier
as fast as measured or slowed to a larger target's step.
"""

import argparse
import gzip
import json
import os
import sys
from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.config import ROOT, THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from app.assemble import load_models
from app.stages.draft.registry import RESIDENT
from bench.cooperate_plans import LENGTHS
from bench.prompts import PROMPTS
from bench.simulate_events import Outcome, Setting, simulate
from bench.simulate_log import Log, record
from bench.simulate_policies import Policy

RESULTS = ROOT / "bench" / "results"
TABLES = tuple(RESIDENT)


def main(argv: Listed[str] | None = None) -> int:
    """Record or replay; the exit status."""
    args = parse_args(argv)
    if args.command == "record":
        settings = Settings.from_env()
        prompts = {domain: of_domain[: args.prompts] for domain, of_domain in PROMPTS.items()}
        log = record(settings, load_models(settings), prompts, args.max_tokens)
        with gzip.open(args.log, "wt") as file:
            file.write(log.model_dump_json())
        print(f"{args.log}: {len(log.texts)} texts, {', '.join(log.drafters)}")
        return 0
    with gzip.open(args.log, "rt") as file:
        log = Log.model_validate_json(file.read())
    if args.costs:
        log = log.model_copy(update={"costs": args.costs.read_text()})
    found = replay(log, args)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="paceline bench simulate", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record", help="write a log of real drafts; loads the models")
    one.add_argument("--prompts", type=int, default=8, help="of each domain")
    one.add_argument("--max-tokens", type=int, default=64, help="tokens a text")
    two = commands.add_parser("replay", help="run the policies over a log")
    two.add_argument("--streams", type=int, nargs="+", default=[1, 8], help="sequences at once")
    two.add_argument("--slowdown", type=float, nargs="+", default=[1.0, 5.0, 20.0], help="of the verifier")
    two.add_argument("--costs", type=Path, help="another target's CostTable, as JSON (default: the recorded one's)")
    two.add_argument("--verifiers", type=int, default=1, help="how many there are")
    two.add_argument("--hop-ms", type=float, default=0.5, help="one way between two machines")
    two.add_argument("--seed", type=int, default=0, help="of the texts' order")
    two.add_argument("--generalist", default="smol-general", help="the drafter that was trained on the mixture")
    two.add_argument("--out", type=Path, default=RESULTS / "simulate.json", help="file to write")
    for command in (one, two):
        command.add_argument("--log", type=Path, default=Path("drafts.json.gz"), help="the recording")
    return parser.parse_args(argv)


def replay(log: Log, args: argparse.Namespace) -> dict[str, Any]:
    """Every policy in every setting."""
    found: dict[str, Any] = {"texts": len(log.texts), "acceptance": acceptance(log), "settings": []}
    for slowdown in args.slowdown:
        for streams in args.streams:
            setting = Setting(streams, args.verifiers, slowdown, 1e-3 * args.hop_ms, args.seed)
            outcomes = outcomes_of(log, setting, args.generalist)
            policies = {name: _rounded(outcome) for name, outcome in outcomes.items()}
            found["settings"].append({**asdict(setting), "policies": policies})
            print(table(setting, outcomes), flush=True)
    return found


def outcomes_of(log: Log, setting: Setting, generalist: str) -> dict[str, Outcome]:
    """By policy. The best single drafter is the best of all drafters and lengths in this very setting."""
    models = tuple(name for name in log.drafters if name not in TABLES)
    singles = {
        f"best single ({name} x {length})": simulate(log, Policy("", (name,), length=length), setting)
        for name in models
        for length in LENGTHS
    }
    best = max(singles, key=lambda name: singles[name].tokens_per_s)
    found = {"off": simulate(log, Policy("off", (), speculates=False), setting), best: singles[best]}
    for name, make in policies(models, generalist).items():
        found[name] = simulate(log, make(), setting)
    return found


def policies(models: tuple[str, ...], generalist: str) -> dict[str, Callable[[], Policy]]:
    """Makers, since a policy learns as it runs."""
    alone = (generalist,)
    own = {
        "generalist": lambda: Policy("generalist", alone),
        "generalist + tables": lambda: Policy("generalist + tables", alone, TABLES),
    }
    return (own if generalist in models else {}) | {
        "union": lambda: Policy("union", models, TABLES),
        "union, tokens shared": lambda: Policy("union, tokens shared", models, (), shares_tokens=True),
        "cosine": lambda: Policy("cosine", models, (), "cosine", shares_tokens=True),
        "cosine routing, tree": lambda: Policy("cosine routing, tree", models, TABLES, "cosine"),
        "learned": lambda: Policy("learned", models, TABLES, "learned"),
        "learned, no tables": lambda: Policy("learned, no tables", models, (), "learned"),
    }


def acceptance(log: Log) -> dict[str, dict[str, float]]:
    """Drafter by domain: how often its first token is right, over every position of the texts."""
    found: dict[str, dict[str, float]] = {}
    for name, drafter in log.drafters.items():
        counts: dict[str, list[int]] = {}
        for text, guesses in zip(log.texts, drafter.guesses, strict=True):
            for token, guess in list(zip(text.tokens, guesses, strict=True))[1:]:
                counts.setdefault(text.domain, []).append(int(guess.tokens[:1] == (token,)))
        found[name] = {domain: round(sum(own) / len(own), 3) for domain, own in counts.items()}
    return found


def table(setting: Setting, outcomes: dict[str, Outcome]) -> str:
    """One setting as lines of Markdown."""
    lines = [
        f"{setting.streams} streams, {setting.verifiers} verifier(s) x{setting.slowdown:g} slower",
        "| policy | tokens/s a stream | tokens/s | accepted length | verified a round | verifier busy | drafter busy |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, o in outcomes.items():
        parts = f"{o.draft_tokens:.2f} | {o.verifier_busy:.0%} | {o.drafter_busy:.0%}"
        lines.append(
            f"| {name} | {o.stream_tokens_per_s:.1f} | {o.tokens_per_s:.1f} | {o.accepted_length:.2f} | {parts} |"
        )
    return "\n".join(lines) + "\n"


def _rounded(outcome: Outcome) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(outcome).items()}


if __name__ == "__main__":
    sys.exit(main())
