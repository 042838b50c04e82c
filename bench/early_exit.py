"""`./paceline bench pruning`: time early exit, rows that leave a pass before its last layer: each rule's price, a step
with it, and end to end, in seconds of the wall and of the processor."""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from app.assembly.local import Models, build_local, load_models
from app.config import Settings
from app.engine.cpu.equivalence import probe
from app.engine.cpu.runner import ModelRunner
from app.engine.early_exit.decisions import StepDecisions
from app.engine.early_exit.rows import Checkpoint, Decisions
from app.placement.partition import cores
from app.plans import PrunerRule
from app.request import GenerateRequest
from app.state import BatchEntry, Tree
from app.system import write_whole
from bench.help import parser as parser_of
from bench.prompts import PROMPTS
from bench.stats import median, paired_ratio

NODES = 4  # of a tree of the timed steps
CONTEXT = 120
BATCHES = (1, 2, 4, 8, 16)
RULES: tuple[PrunerRule, ...] = get_args(PrunerRule)
ARMS: dict[str, dict[str, str]] = {
    "off": {"pruning": "off"},
    **{f"on, {rule}": {"pruning": "on", "pruner_rule": rule} for rule in RULES},
    **{f"auto, {rule}": {"pruning": "auto", "pruner_rule": rule} for rule in ("fitted", "faser-whole-async")},
}


class _Part:
    """A predictor that finds a fixed share of each tree's nodes wrong."""

    def __init__(self, layer: int, share: float) -> None:
        self.layers: tuple[int, ...] = (layer,)
        self._share = share

    def chances(self, layer: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray) -> np.ndarray:
        """Return chances (N,) float64: 0 for the last nodes of each tree, 1 for the others.

        `states`: (N, d) float32; `tokens`, `priors`: (N,).
        """
        return np.where(np.arange(len(tokens)) % NODES < NODES * (1.0 - self._share), 1.0, 0.0)


class _KeepAll:
    """A rule that looks as it does, and then keeps all rows: its price alone."""

    def __init__(self, decisions: Decisions) -> None:
        self.checkpoints = decisions.checkpoints
        self._decisions = decisions

    def ask(
        self, look: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray
    ) -> Callable[[], tuple[np.ndarray, float]]:
        """Ask the rule; answer that all tokens (N,) are right, when it answers."""
        answer = self._decisions.ask(look, states, tokens, priors)
        return lambda: (np.ones(len(answer()[0])), 0.0)


class _Lap:
    """A look at the clock, and at the states, after some layers of a pass."""

    def __init__(self, first: int, end: int) -> None:
        self.checkpoints: tuple[Checkpoint, ...] = (Checkpoint(first, first, 1.0), Checkpoint(end, end, 1.0))
        self.seen: list[float] = []

    def ask(
        self, look: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray
    ) -> Callable[[], tuple[np.ndarray, float]]:
        """Note the time and the arguments; all tokens (N,) stay."""
        self.seen.append(time.perf_counter())
        self.asked = states, tokens, priors
        return lambda: (np.ones(len(tokens)), 0.0)


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark, print and write the figures; return the exit status. Raises SystemExit off
    a CPU."""
    parser = parser_of("bench pruning", __doc__)
    parser.add_argument("--prompts", type=int, default=4, help="of each domain")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens a request")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4], help="requests at once")
    parser.add_argument("--repeats", type=int, default=9, help="of each timed step")
    parser.add_argument("--layer", type=int, help="of the checkpoint of `steps`; else the fitted rule's last")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    args = parser.parse_args(words)
    settings = Settings.from_env()
    models = load_models(settings)
    if not isinstance(models.runner, ModelRunner):
        raise SystemExit("rows are pruned on a CPU only")
    rules = {rule: rule_of(settings, models, rule) for rule in RULES}
    found: dict[str, Any] = {
        "verify_threads": settings.verify_threads,
        "cores": len(cores()),
        "prices": prices(models.runner, rules, args.repeats),
        "rules_ms": steps(
            models.runner, {"none": None, **{name: _KeepAll(rule) for name, rule in rules.items()}}, args
        ),
        "steps_ms": steps(models.runner, ways(args.layer or rules["fitted"].checkpoints[-1].look), args),
        "end_to_end": {},
    }
    for streams in args.streams:
        found["end_to_end"][str(streams)] = end_to_end(settings, models, args, streams)
    print(json.dumps(found, indent=1))
    if args.out:
        write_whole(args.out, json.dumps(found, indent=1) + "\n")
    return 0


def rule_of(settings: Settings, models: Models, rule: PrunerRule) -> Decisions:
    """Load a rule's decisions. Raises SystemExit where the predictor is another target's."""
    runner = models.runner
    assert isinstance(runner, ModelRunner)
    build_local(settings.changed(pruning="on", pruner_rule=rule), models)
    if runner.decisions is None:
        raise SystemExit(f"{settings.plan.pruner} is no predictor of this target")
    return runner.decisions


def prices(runner: ModelRunner, rules: dict[PrunerRule, Decisions], repeats: int) -> dict[str, dict[str, float]]:
    """Return, by sequences at once, the ms of a layer and of one look by each rule in step, and their ratios."""
    num_layers = runner.model.shape.num_layers
    first, end = num_layers // 5, num_layers - num_layers // 5
    looks = {name: rule for name, rule in rules.items() if not name.endswith("-async")}
    found: dict[str, dict[str, float]] = {}
    for batch in BATCHES:
        lap = _Lap(first, end)
        taken: dict[str, list[float]] = {"layer": [], **{name: [] for name in looks}}
        for _ in range(repeats):
            lap.seen.clear()
            _step_ms(runner, batch, lap)
            taken["layer"].append(1000.0 * (lap.seen[1] - lap.seen[0]) / (end - first))
            for name, rule in looks.items():
                started = time.perf_counter()
                rule.ask(rule.checkpoints[0].look, *lap.asked)()
                taken[name].append(1000.0 * (time.perf_counter() - started))
        found[str(batch)] = {f"{name}_ms": round(median(values), 3) for name, values in taken.items()}
        found[str(batch)] |= {
            f"{name}_layers": round(median(taken[name]) / median(taken["layer"]), 2) for name in looks
        }
        print(f"{batch} sequences: {found[str(batch)]}", flush=True)
    return found


def ways(layer: int) -> dict[str, Decisions | None]:
    """Return what drops fixed shares of the nodes after this layer."""
    shares = {"keeps all": 0.0, "drops half": 0.5, "drops all": 1.0}
    here = (Checkpoint(layer, layer, 1.0),)
    return {"none": None, **{name: StepDecisions(_Part(layer, share), here) for name, share in shares.items()}}


def steps(
    runner: ModelRunner, ways: dict[str, Decisions | None], args: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Return each way's median step, [ms of the wall, ms of the processor], by sequences at once, each with a chain
    of NODES; interleaved."""
    found: dict[str, dict[str, list[float]]] = {}
    for batch in BATCHES:
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(args.repeats):
            for name in random.Random(turn).sample([*ways], len(ways)):
                times[name].append(_step_ms(runner, batch, ways[name]))
        found[str(batch)] = {
            name: [round(median(clock), 2) for clock in zip(*values, strict=True)] for name, values in times.items()
        }
        print(f"{batch} sequences: {found[str(batch)]}", flush=True)
    return found


def _step_ms(runner: ModelRunner, batch: int, decisions: Decisions | None) -> tuple[float, float]:
    works = []
    for number in range(batch):
        sequence = probe(CONTEXT, 1000)
        sequence.tokens[0] = number
        prompt = BatchEntry(sequence, 0, sequence.tokens[:-1], Tree(), final=False)
        chain = Tree([7] * NODES, list(range(NODES)), [0.5] * NODES, [("bench",)] * NODES)
        works.append(BatchEntry(sequence, CONTEXT - 1, sequence.tokens[-1:], chain, final=True))
        if not (runner.try_reserve(prompt) and runner.try_reserve(works[-1])):
            raise SystemExit("the KV cache is too small")
        works[-1].floor = 0.5
    runner.decisions = decisions
    started, used = time.perf_counter(), time.process_time()
    runner.forward(works)
    took, used = time.perf_counter() - started, time.process_time() - used
    for work in works:
        runner.drop(work)
        runner.release(work.sequence)
    return 1000.0 * took, 1000.0 * used


class _Arm:
    def __init__(self, settings: Settings, models: Models) -> None:
        assert isinstance(models.runner, ModelRunner)
        self._settings, self._runner = settings, models.runner
        models.runner.decisions = None
        self.pipeline = build_local(settings, models)
        self._decisions = models.runner.decisions

    def __call__(self, prompts: Sequence[str], max_tokens: int) -> tuple[float, float, list[tuple[int, ...]], int]:
        """Run the prompts at once; return (seconds of the wall, of the processor, token ids by prompt, rounds)."""
        self._runner.decisions = self._decisions  # the arms share the runner
        started, used = time.perf_counter(), time.process_time()
        records = [
            self.pipeline.submit(GenerateRequest(prompt=prompt, max_tokens=max_tokens), self._settings)
            for prompt in prompts
        ]
        while self.pipeline.verifier.sequences:
            self.pipeline.step()
        seconds, used = time.perf_counter() - started, time.process_time() - used
        ends = [self.pipeline.store.snapshot(record.id) for record in records]
        return seconds, used, [end.tokens for end in ends], sum(end.stats.rounds for end in ends)


def end_to_end(settings: Settings, models: Models, args: argparse.Namespace, streams: int) -> dict[str, Any]:
    """Run every arm on every group of prompts in changing order; return figures with paired ratios
    to `off`.

    Raises SystemExit when two arms commit different tokens.
    """
    arms = {name: _Arm(settings.changed(**update), models) for name, update in ARMS.items()}
    asked = [prompt for of_domain in PROMPTS.values() for prompt in of_domain[: args.prompts]]
    random.Random(0).shuffle(asked)
    groups = [asked[i : i + streams] for i in range(0, len(asked), streams)]
    for arm in arms.values():
        arm(groups[0], args.max_tokens)
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    used: dict[str, list[float]] = {name: [] for name in arms}
    rates: dict[str, list[float]] = {name: [] for name in arms}
    rounds = dict.fromkeys(arms, 0)
    tokens = 0
    for turn, group in enumerate(groups):
        texts: dict[str, list[tuple[int, ...]]] = {}
        for name in random.Random(turn).sample([*arms], len(arms)):
            took, cpu, texts[name], ran = arms[name](group, args.max_tokens)
            seconds[name].append(took)
            used[name].append(cpu)
            rates[name].append(sum(map(len, texts[name])) / took)
            rounds[name] += ran
        if any(text != texts["off"] for text in texts.values()):
            raise SystemExit("no figures: the arms said different things")
        tokens += sum(map(len, texts["off"]))
    found: dict[str, Any] = {}
    for name, arm in arms.items():
        report = arm.pipeline.verifier.report()
        found[name] = {
            "tokens_per_s": round(median(rates[name]), 2),
            "over_off": _rounded(paired_ratio(seconds["off"], seconds[name]).asdict()),
            "over_off_processor": _rounded(paired_ratio(used["off"], used[name]).asdict()),
            "tokens_per_round": round(tokens / rounds[name], 3),
            "looked_at": report["nodes_looked_at"],
            "dropped": report["nodes_pruned"],
            "dropped_wrongly": report["nodes_pruned_wrongly"],
        }
        print(f"{streams} at once, {name}: {found[name]}", flush=True)
    return found


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in values.items()}


if __name__ == "__main__":
    sys.exit(main())
