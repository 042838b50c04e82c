"""Run ways of drafting as pipelines in this process, which share the target and each drafter's weights."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from app.assembly.local import Models, build_local
from app.config import Settings
from app.messages import DraftJob, Record, TreeMessage
from app.pipeline import LocalPipeline
from app.request import GenerateRequest, SpeculationBounds
from app.store.protocol import Snapshot
from lab.load import Block
from lab.lone import lone
from lab.ways import Variant


class PipelineRunner:
    """A way's pipeline. A prompt that comes twice is known to the suffix drafter."""

    def __init__(self, way: Variant, settings: Settings, models: Models, max_tokens: int) -> None:
        """Raises ValueError for a way that no pipeline has."""
        if way.ends_as:
            raise ValueError(f"{way.name!r} does not run in this process: its drafters are processes of their own")
        self._settings = settings.changed(**way.settings)
        self._bounds = SpeculationBounds(enabled=way.speculates)
        self._max_tokens = max_tokens
        built = build_local(self._settings, models)
        self._pipeline = LonePipeline.of(built) if way.without == "fusion" else built
        verifier = built.verifier
        names = models.guessers if way.drafters is None else way.drafters
        pool = replace(verifier.speculation.pool, models=dict.fromkeys(names, "local"))
        verifier.follow(pool if way.model_free is None else replace(pool, model_free=way.model_free), verifier.policy)

    def run(self, block: Block) -> list[Snapshot]:
        """Run a block; return the ended requests. Raises SystemExit if the prefix cache was used."""
        pipeline, sequences = self._pipeline, self._pipeline.verifier.sequences
        records: list[Record] = []
        began_s = time.time()
        while len(records) < len(block.requests) or sequences:
            while block.may_start(len(records), len(sequences), time.time() - began_s):
                records.append(pipeline.submit(self._request(block.requests[len(records)][1]), self._settings))
            if sequences:
                pipeline.step()
            elif block.arrivals_s and len(records) < len(block.requests):
                time.sleep(max(0.0, began_s + block.arrivals_s[len(records)] - time.time()))
        if pipeline.verifier.stats.reused_tokens:
            raise SystemExit("a prompt was found in the cache: its way did less work than the others")
        ends = [pipeline.store.snapshot(record.id) for record in records]
        if block.arrivals_s is None:
            return ends
        return [_due(end, began_s + at_s) for end, at_s in zip(ends, block.arrivals_s, strict=True)]

    def report(self) -> dict[str, Any]:
        stats = self._pipeline.verifier.stats
        return {"model_rounds": round(stats.model_rounds / stats.later_rounds, 3) if stats.later_rounds else 0.0}

    def _request(self, prompt: str) -> GenerateRequest:
        return GenerateRequest(prompt=prompt, max_tokens=self._max_tokens, speculation=self._bounds)


def _due(end: Snapshot, at_s: float) -> Snapshot:
    """Return an ended request as created when it was due: a pipeline takes requests between steps only."""
    return replace(end, record=end.record.model_copy(update={"created_s": at_s}))


class LonePipeline(LocalPipeline):
    """A pipeline without fusion: of each tree one drafter's draft is verified."""

    @classmethod
    def of(cls, built: LocalPipeline) -> "LonePipeline":
        return cls(built.verifier, built.node, built.fuser, built.store, built.tokenizer)

    def draft(self, jobs: Iterable[DraftJob]) -> list[TreeMessage]:
        """Draft and fuse the jobs, and leave one drafter's draft of each tree."""
        return [lone(tree) for tree in super().draft(jobs)]
