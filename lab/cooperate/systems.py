"""Build, run and time an arm of `lab cooperate` as a pipeline in this process.

Takes a variant and loaded models, returns runs. All arms share one target and one copy of every
drafter (`app.assembly.local.Models`); caches and model-free drafters are each arm's
own.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace
from typing import Any, cast

from app.assembly.local import Models, build_local
from app.config import Settings
from app.engine.cpu.runner import ModelRunner
from app.engine.target import LaunchedStep, Target, TargetRows
from app.messages import DraftJob, TreeMessage
from app.pipeline import LocalPipeline
from app.request import GenerateRequest, SpeculationBounds
from app.state import BatchEntry
from app.store.protocol import Snapshot
from lab.cooperate.lone import lone
from lab.cooperate.variants import Variant

Shape = Callable[[TreeMessage], TreeMessage]


@dataclass(frozen=True, slots=True)
class Run:
    """Hold one run of prompts at once through one arm; times in seconds.

    `steps` and the `decode_s`, `draft_s` and `verify_s` count from when all prompts have a first
    token.
    """

    seconds: float
    token_ids: tuple[tuple[int, ...], ...]  # by prompt
    ttft_s: tuple[float, ...] = ()
    latency_s: tuple[float, ...] = ()
    rounds: int = 0  # of all requests; 0: not known
    later_rounds: int = 0  # of those after a request's first token; 0: not known
    model_rounds: int = 0  # of these, the ones for which a model drafter was asked
    steps: int = 0  # of the target
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    by_drafter: dict[str, tuple[int, int]] = field(default_factory=dict)  # tokens verified, tokens right

    @property
    def tokens(self) -> int:
        """Return the tokens of all prompts."""
        return sum(len(ids) for ids in self.token_ids)

    @property
    def tokens_per_s(self) -> float:
        """Return the tokens of all prompts a second."""
        return self.tokens / self.seconds


class PipelineArm:
    """A variant's pipeline. Send no prompt twice: the suffix drafter would know the answer."""

    def __init__(self, variant: Variant, settings: Settings, models: Models, max_tokens: int) -> None:
        self._settings = settings.changed(**variant.settings)
        self._speculates = variant.speculates
        self._max_tokens = max_tokens
        self._target = TimedTarget(models.runner)
        self._pipeline = _pipeline(variant, self._settings, replace(models, runner=cast(ModelRunner, self._target)))
        _set_up(self._pipeline, variant, models)

    def __call__(self, prompts: list[str]) -> Run:
        """Run the prompts at once, to their ends. Raises SystemExit when the prefix cache was
        used."""
        pipeline, sequences = self._pipeline, self._pipeline.verifier.sequences
        stats = pipeline.verifier.stats
        later_rounds, model_rounds = stats.later_rounds, stats.model_rounds
        started = time.perf_counter()
        records = [pipeline.submit(self._request(prompt), self._settings) for prompt in prompts]
        while any(not sequence.generated for sequence in sequences.values()):
            pipeline.step()
        first_s = time.perf_counter()
        steps, draft_s, verify_s = self._target.calls, pipeline.draft_s, self._target.seconds
        while sequences:
            pipeline.step()
        ended = time.perf_counter()
        if stats.reused_tokens:
            raise SystemExit("a prompt was found in the cache: its arm did less work than the others")
        ends = [pipeline.store.snapshot(record.id) for record in records]
        return Run(
            ended - started,
            tuple(end.tokens for end in ends),
            tuple((end.stats.first_token_s or 0.0) - end.record.created_s for end in ends),
            tuple((end.stats.last_token_s or 0.0) - end.record.created_s for end in ends),
            sum(end.stats.rounds for end in ends),
            stats.later_rounds - later_rounds,
            stats.model_rounds - model_rounds,
            self._target.calls - steps,
            ended - first_s,
            pipeline.draft_s - draft_s,
            self._target.seconds - verify_s,
            by_drafter_of(ends),
        )

    def load(self, arrivals: Listed[tuple[float, str]]) -> list[Snapshot]:
        """Send requests at these seconds from now, whether or not others have ended; return all,
        ended."""
        pipeline, sequences = self._pipeline, self._pipeline.verifier.sequences
        started, records, waiting = time.perf_counter(), [], deque(arrivals)
        while waiting or sequences:
            if not sequences:
                time.sleep(max(0.0, started + waiting[0][0] - time.perf_counter()))
            while waiting and started + waiting[0][0] <= time.perf_counter():
                records.append(pipeline.submit(self._request(waiting.popleft()[1]), self._settings))
            if sequences:
                pipeline.step()
        return [pipeline.store.snapshot(record.id) for record in records]

    def _request(self, prompt: str) -> GenerateRequest:
        return GenerateRequest(
            prompt=prompt, max_tokens=self._max_tokens, speculation=SpeculationBounds(enabled=self._speculates)
        )


class TimedTarget:
    """A target that adds up its steps, and the seconds that it worked on them. All else is the inner one's."""

    def __init__(self, inner: Target) -> None:
        self._inner = inner
        self.calls, self.seconds = 0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, works: list[BatchEntry]) -> "TimedStep":
        """Launch the inner target's step."""
        return TimedStep(self, self._inner.launch(works))


class TimedStep:
    """A step that its target counts once it is collected. Implements `LaunchedStep`."""

    def __init__(self, target: TimedTarget, inner: LaunchedStep) -> None:
        self._target, self._inner = target, inner

    @property
    def runs_beside(self) -> bool:
        """Tell whether the step runs beside the caller."""
        return self._inner.runs_beside

    @property
    def took_s(self) -> float:
        """Return the seconds that the target worked on it; 0 before it is collected."""
        return self._inner.took_s

    def collect(self) -> Listed[TargetRows | None]:
        """Wait for the step and return its rows."""
        rows = self._inner.collect()
        self._target.calls += 1
        self._target.seconds += self._inner.took_s
        return rows


class ArmPipeline(LocalPipeline):
    """A pipeline that times drafting and may change trees before the verifier sees them."""

    def __init__(self, built: LocalPipeline, shape: Shape | None) -> None:
        super().__init__(built.verifier, built.node, built.fuser, built.store, built.tokenizer)
        self.draft_s = 0.0
        self._shape = shape

    def draft(self, jobs: Iterable[DraftJob]) -> list[TreeMessage]:
        """Draft and fuse the jobs, and change the trees as the variant says."""
        started = time.perf_counter()
        try:
            trees = super().draft(jobs)
            return trees if self._shape is None else [self._shape(tree) for tree in trees]
        finally:
            self.draft_s += time.perf_counter() - started


def shape_of(variant: Variant) -> Shape | None:
    """Return the function that changes the variant's trees before the verifier sees them; None for no
    change."""
    return lone if variant.without == "fusion" else None


def _set_up(pipeline: LocalPipeline, variant: Variant, models: Models) -> None:
    """Have the verifier ask the variant's drafters."""
    verifier = pipeline.verifier
    names = models.guessers if variant.drafters is None else variant.drafters
    pool = replace(verifier.speculation.pool, models=dict.fromkeys(names, "local"))
    if variant.model_free is not None:
        pool = replace(pool, model_free=variant.model_free)
    verifier.follow(pool, verifier.policy)


def _pipeline(variant: Variant, settings: Settings, models: Models) -> ArmPipeline:
    """Build the variant's pipeline: the settings' own, or one with a part taken out."""
    built = build_local(settings, models)
    return ArmPipeline(built, shape_of(variant))


def by_drafter_of(ends: Iterable[Snapshot]) -> dict[str, tuple[int, int]]:
    """Add up each drafter's tokens over ended requests: verified, and right."""
    found: dict[str, tuple[int, int]] = {}
    for end in ends:
        for name, stats in end.stats.by_drafter.items():
            drafted, accepted = found.get(name, (0, 0))
            found[name] = (drafted + stats.drafted, accepted + stats.accepted)
    return found
