"""Time the serving loop in one process: a verifier's rounds, with drafts and without, at several numbers of requests.

The target's steps are real, of random weights, but the tokens taken from them are known texts, so that
scripted drafts are right as often as stated: some 2.1 tokens a round. Such drafts take no time of the
device; a model's would. `gpu_ms` is a step by the device's own clock, `host_ms` a round's time that does
not wait for the device, `round_ms` all of it. Rounds run as a deployment's, where the host commits a step
beside the next one, and once more one part after the other: `serial`.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import mean
from typing import Any, Final, NamedTuple, cast

import torch

from app.assembly.verifier import verifier_over
from app.config import Settings
from app.drafter.drafter import DrafterNode
from app.drafter.replicas import fetcher
from app.engine.early_exit.controller import EarlyExitController
from app.engine.gpu.runner import DeviceRunner, DeviceStep
from app.engine.profile.gpu_profiler import CHUNK
from app.engine.step_costs import StepCosts
from app.engine.target import Target
from app.engine.text.tokenizer import Tokenizer
from app.fuser.fuser import Fuser
from app.messages import FinishReason
from app.pipeline import LocalPipeline, draft_here, run_round
from app.policy import Policy
from app.speculation.drafter_pool import DrafterPool
from app.state import BatchEntry
from app.store.memory import MemoryStore
from app.verifier.measured_target import MeasuredTarget
from bench.gpu.random_models import EIGHT_B, TINY, random_weights, room, runner_of
from bench.gpu.setting import DRAFTED, Figures, Setting
from bench.records import record_of
from bench.scale.stand_in import FIRST_ID, IDS, StandInDrafter, StandInRows

MAILBOX = "local"
RATE = 0.54  # of draft tokens that are right: 2.1 tokens a round
MOST_A_ROUND = 3  # tokens, on average over all rounds
SLACK = 64  # tokens that a sequence's last trees may reach beyond its text


@dataclass(frozen=True, slots=True)
class Plan:
    """The numbers of one run of the loop."""

    requests: tuple[int, ...]
    prompt: int  # tokens
    warm_up: int  # rounds
    rounds: int
    serial: int  # rounds

    @property
    def tokens(self) -> int:
        """Return more tokens than a sequence will have."""
        return self.prompt + MOST_A_ROUND * (2 * self.warm_up + self.rounds + self.serial) + 2 * (1 + DRAFTED)


def measure(setting: Setting, found: Figures) -> None:
    """Write a line for each number of requests, with drafts and without, into `found`."""
    shape, plan = EIGHT_B, Plan((1, 16, 64, 256), prompt=512, warm_up=8, rounds=100, serial=30)
    if setting.is_quick:
        shape, plan = replace(TINY, layers=1, vocab=FIRST_ID + IDS), Plan((1,), prompt=3, warm_up=1, rounds=1, serial=1)
    weights = random_weights(setting, shape)
    held = {count: room(count, plan.tokens + SLACK) for count in plan.requests}
    fitting = [count for count, tokens in held.items() if tokens * weights.token_bytes < _free_bytes(setting)]
    runner = runner_of(weights, held[max(fitting)], longest_tokens=plan.tokens + SLACK)
    points = ({"requests": count, "drafted": drafted} for count, drafted in product(fitting, (0, DRAFTED)))
    lines = setting.lines(points, partial(_measure, runner, shape.vocab, plan))
    found[shape.name] = [*({"requests": count, "too_large": True} for count in held if count not in fitting), *lines]


class StepTimes(NamedTuple):
    """What a step took, kept without its logits."""

    gpu_s: float
    waited_s: float  # by the host


class TimedStep:
    """A step that runs on the device, and whose tokens are those of the known texts. Implements `LaunchedStep`."""

    def __init__(self, works: list[BatchEntry], step: DeviceStep, collected: list[StepTimes]) -> None:
        self._works, self._step, self._collected = works, step, collected
        self.runs_beside: Final = step.runs_beside

    @property
    def took_s(self) -> float:
        """Implement `LaunchedStep.took_s`."""
        return self._step.took_s

    def collect(self) -> list[StandInRows | None]:
        """Wait for the device, and read its tokens; return rows that know the texts."""
        began_s = time.perf_counter()
        rows = self._step.collect()
        self._collected.append(StepTimes(self._step.took_s, time.perf_counter() - began_s))
        pairs = zip(self._works, rows, strict=True)
        return [None if row is None else StandInRows(work.sequence.id) for work, row in pairs]


class ScriptedTarget:
    """A runner as a verifier's target that says known texts, and keeps its steps' times. Implements `Target`."""

    def __init__(self, runner: DeviceRunner) -> None:
        self._runner = runner
        self.collected: Final[list[StepTimes]] = []
        self.capacity_tokens: Final = runner.capacity_tokens
        self.try_reserve: Final = runner.try_reserve
        self.release: Final = runner.release
        self.adopt: Final = runner.adopt
        self.cover: Final = runner.cover
        self.accept: Final = runner.accept
        self.drop: Final = runner.drop
        self.invalidate: Final = runner.invalidate

    @property
    def free_tokens(self) -> int:
        """Implement `Target.free_tokens`."""
        return self._runner.free_tokens

    def launch(self, works: list[BatchEntry]) -> TimedStep:
        """Launch the runner's step."""
        return TimedStep(works, self._runner.launch(works), self.collected)


def pipeline_over(target: Target, vocab_size: int, drafted: int) -> LocalPipeline:
    """Build the pipeline around a target, with drafts of `drafted` tokens that are right at RATE; 0: without drafts."""
    settings = Settings().changed(
        lengths=f"fixed:{drafted}", overlap="none", drafters=(), phrases="none", max_sequences=512
    )
    store = MemoryStore()
    costs = StepCosts({1: 0.01, 4096: 0.01})  # it decides no lengths here, and is corrected by each step
    measured = MeasuredTarget(target, costs, vocab_size, EarlyExitController(), CHUNK)
    verifier = verifier_over(settings, measured, MAILBOX, store)
    fuser = Fuser([StandInDrafter(RATE)], vocab_size, fetcher(store), own=verifier.sequences.tokens)
    verifier.follow(DrafterPool({}, (StandInDrafter.name,), fuser=MAILBOX, alone=MAILBOX), Policy())
    node = DrafterNode((), fetcher(store), MAILBOX)
    return LocalPipeline(verifier, node, fuser, store, cast(Tokenizer, None))  # no texts come in or go out


def run_beside(pipeline: LocalPipeline) -> None:
    """Run a round as a deployment does: the next step is launched before the last one is committed."""
    run_round(pipeline.verifier, partial(draft_here, pipeline.fuser, MAILBOX), _none_left, lambda: float("inf"))


def _measure(runner: DeviceRunner, vocab_size: int, plan: Plan, requests: int, drafted: int) -> Figures:
    line: Figures = {}
    target = ScriptedTarget(runner)
    pipeline = pipeline_over(target, vocab_size, drafted)
    records = [  # no prompt is like another, so that each has keys of its own
        record_of(
            ((number * 31 + i * 7919 + 13) % vocab_size for i in range(plan.prompt)),
            plan.tokens,
            name=f"request-{number}",
        )
        for number in range(requests)
    ]
    for record in records:
        pipeline.store.create(record, limit=len(records))
        pipeline.store.assign(record.id, pipeline.verifier.owner)
    pipeline.verifier.adopt([record.id for record in records])
    while any(sequence.generated == 0 for sequence in pipeline.verifier.sequences.all()):
        run_beside(pipeline)
    for name, run, rounds in (("", run_beside, plan.rounds), ("serial_", LocalPipeline.step, plan.serial)):
        for _ in range(plan.warm_up):
            run(pipeline)
        figures = _rounds(pipeline, target, partial(run, pipeline), rounds)
        line |= {name + key: value for key, value in figures.items()}
    pipeline.verifier.release([record.id for record in records])  # no step is under way: the last rounds were serial
    for record in records:
        pipeline.store.end(record.id, FinishReason.CANCELLED)
    return line


def _rounds(pipeline: LocalPipeline, target: ScriptedTarget, run: Callable[[], None], rounds: int) -> Figures:
    first, tokens, began_s = len(target.collected), _tokens(pipeline), time.perf_counter()
    for _ in range(rounds):
        run()
    whole_s = time.perf_counter() - began_s
    made, steps = _tokens(pipeline) - tokens, target.collected[first:]
    waited_s = sum(step.waited_s for step in steps)
    count = len(pipeline.verifier.sequences.all())
    return {
        "gpu_ms": round(mean(step.gpu_s for step in steps) * 1e3, 4),
        "host_ms": round((whole_s - waited_s) / rounds * 1e3, 4),
        "round_ms": round(whole_s / rounds * 1e3, 4),
        "tokens_a_round": round(made / rounds / count, 3),
        "tokens_s": round(made / whole_s, 1),
    }


def _tokens(pipeline: LocalPipeline) -> int:
    return sum(len(sequence.kv.tokens) for sequence in pipeline.verifier.sequences.all())


def _none_left(jobs: Listed[Any]) -> None:
    """Take the jobs for other nodes: there are none."""


def _free_bytes(setting: Setting) -> float:
    """Return nine tenths of the bytes that are free on a GPU; elsewhere no limit."""
    return 0.9 * torch.cuda.mem_get_info(setting.device)[0] if setting.device.type == "cuda" else float("inf")
