"""`./paceline bench pruning`: time early exit, rows that leave a pass before its last layer, a step
and end to end."""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from app.assembly.local import Models, build_local, load_models
from app.config import Settings
from app.engine.cpu.equivalence import probe
from app.engine.cpu.runner import ModelRunner
from app.engine.profile.profiler import PASSES, ROWS
from app.estimates.step_costs import StepCosts
from app.request import GenerateRequest
from app.state import BatchEntry, Tree
from app.system import write_whole
from bench.help import parser as parser_of
from bench.prompts import PROMPTS
from bench.stats import median, paired_ratio

Clock = Callable[[], float]
NODES = 4  # of a tree of the timed steps
CONTEXT = 120
BATCHES = (1, 2, 4, 8, 16)
ARMS: dict[str, dict[str, str]] = {
    "off": {"pruning": "off"},
    "on": {"pruning": "on"},
    "auto": {"pruning": "auto"},
    "faser": {"pruning": "on", "pruner_rule": "faser"},
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


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark, print and write the figures; return the exit status. Raises SystemExit off
    a CPU."""
    parser = parser_of("bench pruning", __doc__)
    parser.add_argument("--prompts", type=int, default=4, help="of each domain")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens a request")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4], help="requests at once")
    parser.add_argument("--repeats", type=int, default=9, help="of each timed step")
    parser.add_argument("--layer", type=int, help="of the timed steps' checkpoint; else that of the predictor")
    parser.add_argument(
        "--cpu-time", action="store_true", help="seconds of the processor: with one thread, on a busy machine"
    )
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    args = parser.parse_args(words)
    settings = Settings.from_env()
    models = load_models(settings)
    clock = time.process_time if args.cpu_time else time.perf_counter
    if args.cpu_time:
        models = replace(models, costs=step_costs(models, clock).dumps())
    found: dict[str, Any] = {"steps_ms": steps(settings, models, args, clock), "end_to_end": {}}
    for streams in args.streams:
        found["end_to_end"][str(streams)] = end_to_end(settings, models, args, streams, clock)
    print(json.dumps(found, indent=1))
    if args.out:
        write_whole(args.out, json.dumps(found, indent=1) + "\n")
    return 0


def steps(settings: Settings, models: Models, args: argparse.Namespace, clock: Clock) -> dict[str, dict[str, float]]:
    """Return each variant's median step in ms by sequences at once, each with a chain of NODES;
    interleaved.

    Raises SystemExit where the target runs on a GPU.
    """
    runner = models.runner
    if not isinstance(runner, ModelRunner):
        raise SystemExit("rows are pruned on a CPU only")
    build_local(settings, models)
    at = args.layer or (runner.predictor.layers[0] if runner.predictor else runner.model.shape.num_layers // 2)
    ways = {"no checkpoint": None, "keeps all": 0.0, "drops half": 0.5, "drops all": 1.0}
    found: dict[str, dict[str, float]] = {}
    for batch in BATCHES:
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(args.repeats):
            for name in random.Random(turn).sample([*ways], len(ways)):
                times[name].append(_step_ms(runner, batch, at, ways[name], clock))
        found[str(batch)] = {name: round(median(values), 2) for name, values in times.items()}
        print(f"{batch} sequences, checkpoint after layer {at}: {found[str(batch)]}", flush=True)
    runner.predictor = None
    return found


def step_costs(models: Models, clock: Clock) -> StepCosts:
    """Measure step costs by this clock: the verifier's own are by the wall clock."""
    runner = models.runner
    assert isinstance(runner, ModelRunner)
    taken: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(PASSES):
        for rows in ROWS:
            taken[rows].append(_step_ms(runner, 1, 0, None, clock, rows - 1) / 1000.0)
    return StepCosts({rows: min(seconds) for rows, seconds in taken.items()})


def _step_ms(
    runner: ModelRunner, batch: int, layer: int, share: float | None, clock: Clock, nodes: int = NODES
) -> float:
    works = []
    for number in range(batch):
        sequence = probe(CONTEXT, 1000)
        sequence.tokens[0] = number
        prompt = BatchEntry(sequence, 0, sequence.tokens[:-1], Tree(), final=False)
        chain = Tree([7] * nodes, list(range(nodes)), [0.5] * nodes, [("bench",)] * nodes)
        works.append(BatchEntry(sequence, CONTEXT - 1, sequence.tokens[-1:], chain, final=True))
        if not (runner.try_reserve(prompt) and runner.try_reserve(works[-1])):
            raise SystemExit("the KV cache is too small")
        works[-1].floor = 0.0 if share is None else 0.5
    if share is not None:
        runner.predictor = _Part(layer, share)
    started = clock()
    runner.forward(works)
    took = clock() - started
    for work in works:
        runner.drop(work)
        runner.release(work.sequence)
    return 1000.0 * took


class _Arm:
    def __init__(self, settings: Settings, models: Models, clock: Clock) -> None:
        self._settings, self._runner, self._clock = settings, models.runner, clock
        self.pipeline = build_local(settings, models)
        self._predictor = getattr(models.runner, "predictor", None)

    def __call__(self, prompts: Sequence[str], max_tokens: int) -> tuple[float, list[tuple[int, ...]], int]:
        """Run the prompts at once; return (seconds, token ids by prompt, rounds)."""
        if isinstance(self._runner, ModelRunner):
            self._runner.predictor = self._predictor  # the arms share the runner
        started = self._clock()
        records = [
            self.pipeline.submit(GenerateRequest(prompt=prompt, max_tokens=max_tokens), self._settings)
            for prompt in prompts
        ]
        while self.pipeline.verifier.sequences:
            self.pipeline.step()
        seconds = self._clock() - started
        ends = [self.pipeline.store.snapshot(record.id) for record in records]
        return seconds, [end.tokens for end in ends], sum(end.stats.rounds for end in ends)


def end_to_end(
    settings: Settings, models: Models, args: argparse.Namespace, streams: int, clock: Clock
) -> dict[str, Any]:
    """Run every arm on every group of prompts in changing order; return figures with paired ratios
    to `off`.

    Raises SystemExit when two arms commit different tokens.
    """
    arms = {name: _Arm(settings.model_copy(update=update), models, clock) for name, update in ARMS.items()}
    asked = [prompt for of_domain in PROMPTS.values() for prompt in of_domain[: args.prompts]]
    random.Random(0).shuffle(asked)
    groups = [asked[i : i + streams] for i in range(0, len(asked), streams)]
    for arm in arms.values():
        arm(groups[0], args.max_tokens)
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    rates: dict[str, list[float]] = {name: [] for name in arms}
    rounds = dict.fromkeys(arms, 0)
    tokens = 0
    for turn, group in enumerate(groups):
        texts: dict[str, list[tuple[int, ...]]] = {}
        for name in random.Random(turn).sample([*arms], len(arms)):
            took, texts[name], ran = arms[name](group, args.max_tokens)
            seconds[name].append(took)
            rates[name].append(sum(map(len, texts[name])) / took)
            rounds[name] += ran
        if any(text != texts["off"] for text in texts.values()):
            raise SystemExit("no figures: the arms said different things")
        tokens += sum(map(len, texts["off"]))
    found = {
        name: {
            "tokens_per_s": round(median(rates[name]), 2),
            "over_off": {
                key: round(value, 4) for key, value in paired_ratio(seconds["off"], seconds[name]).asdict().items()
            },
            "tokens_per_round": round(tokens / rounds[name], 3),
            "looked_at": arms[name].pipeline.verifier.report()["nodes_looked_at"],
            "dropped": arms[name].pipeline.verifier.report()["nodes_pruned"],
        }
        for name in arms
    }
    for name, figures in found.items():
        print(f"{streams} at once, {name}: {figures}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
