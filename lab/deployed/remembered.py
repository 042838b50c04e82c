"""Let a target generate its texts once, and another one answer from them without computing.

For a machine that cannot compute a stated device's steps in their time. A text depends on no draft (design D1).
"""

from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from functools import partial

import numpy as np
from pydantic import BaseModel, TypeAdapter

from app.assembly.devices import target_runner
from app.assembly.local import Models, build_local
from app.config import Settings
from app.engine.kv.block_manager import PagedRunner
from app.engine.kv.pages import PagePool
from app.engine.kv.sizing import PAGE_TOKENS
from app.engine.target import StepOnCollect
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import target_folder
from app.request import GenerateRequest, Sampling, SpeculationBounds, TokenLogprobs
from app.state import BatchEntry
from bench.prompts import Prompts

CACHED_TOKENS = 2**20
OFF = SpeculationBounds(enabled=False)


class Remembered(BaseModel):
    """A prompt, the target's text, and its last hidden state where it chose each token."""

    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    states: tuple[str | None, ...]  # hexadecimal


TEXTS = TypeAdapter(tuple[Remembered, ...])


def generated(settings: Settings, prompts: Prompts, max_tokens: int, costs: str) -> tuple[Remembered, ...]:
    """Generate all texts by plain decoding; `costs`: step costs as JSON. Raises ModelRefused."""
    folder = target_folder(settings)
    tokenizer = Tokenizer(folder)
    runner = target_runner(folder, settings, tokenizer.context_tokens)
    pipeline = build_local(settings, Models(runner, costs, {}, tokenizer))
    wanted = [
        GenerateRequest(prompt=one, max_tokens=max_tokens, speculation=OFF) for own in prompts.values() for one in own
    ]
    records = [pipeline.submit(request, settings) for request in wanted]
    states: dict[str, dict[int, str | None]] = {record.id: {} for record in records}
    sequences = pipeline.verifier.sequences
    while sequences:
        pipeline.step()
        for request_id, sequence in sequences.items():
            state = sequence.kv.state
            states[request_id][sequence.generated - 1] = state.hex() if state else None
    ends = [pipeline.store.snapshot(record.id) for record in records]
    return tuple(
        Remembered(
            prompt_ids=end.record.prompt_ids,
            tokens=end.tokens,
            states=tuple(states[end.record.id].get(i) for i in range(len(end.tokens))),
        )
        for end in ends
    )


class RememberedTarget(PagedRunner):
    """A target (`app.engine.target.Target`) that has its texts by heart, and knows no others."""

    def __init__(self, texts: Iterable[Remembered]) -> None:
        super().__init__(PagePool(CACHED_TOKENS // PAGE_TOKENS, PAGE_TOKENS), shares=False)
        self._texts = tuple(texts)
        self._known: dict[str, Remembered] = {}  # by request

    def try_reserve(self, work: BatchEntry) -> bool:
        return self.pool.try_grow(work.sequence.pages, work.start + len(work.tokens) + len(work.tree))

    def launch(self, works: list[BatchEntry]) -> StepOnCollect:
        return StepOnCollect(partial(self._rows, works))

    def accept(self, work: BatchEntry, path: list[int]) -> None:
        self._keep(work, work.start + len(work.tokens) + len(path))

    def _rows(self, works: list[BatchEntry]) -> "list[RememberedRows | None]":
        return [RememberedRows(self._text(work), work) if work.final else None for work in works]

    def _text(self, work: BatchEntry) -> Remembered:
        sequence = work.sequence
        if sequence.id not in self._known:
            tokens = tuple(sequence.tokens)
            self._known[sequence.id] = next(
                text for text in self._texts if tokens[: len(text.prompt_ids)] == text.prompt_ids
            )
        return self._known[sequence.id]

    def _clear(self, pages: list[int]) -> None:
        """Do nothing: the pages hold no numbers."""


@dataclass(frozen=True, slots=True)
class RememberedRows:
    """The rows of an entry by its text; those off the accepted path are never read."""

    text: Remembered
    work: BatchEntry

    def token(
        self, node: int, position: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> int:
        return self.text.tokens[position - len(self.text.prompt_ids)]

    def logprobs(
        self, node: int, token: int, top: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> TokenLogprobs:
        raise NotImplementedError("nothing remembers any")

    def state(self, node: int) -> bytes | None:
        at = len(self.work.sequence.tokens) - len(self.text.prompt_ids) + self.work.tree.depths()[node]
        state = self.text.states[at]
        return bytes.fromhex(state) if state else None
