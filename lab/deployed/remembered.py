"""Let a target generate its texts once, and another one answer from them without computing.

For a machine that cannot compute a stated device's steps in their time. A text depends on no draft (design D1).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import TypeAdapter

from app.assembly.devices import target_runner
from app.assembly.local import Models, build_local
from app.config import Settings
from app.engine.kv.block_manager import PagedRunner
from app.engine.kv.pages import PagePool
from app.engine.kv.sizing import PAGE_TOKENS
from app.engine.target import StepOnCollect
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import target_folder
from app.request import GenerateRequest, SpeculationBounds
from app.state import BatchEntry
from bench.prompts import Prompts
from lab.simulate.log import Text
from lab.simulate.models import MEMORY_TOKENS, LogRows, LogTarget


class Remembered(Text):
    """A text with the target's last hidden state where it chose each token, hexadecimal."""

    states: tuple[str | None, ...]


TEXTS = TypeAdapter(tuple[Remembered, ...])


def generated(settings: Settings, prompts: Prompts, max_tokens: int, costs: str) -> tuple[Remembered, ...]:
    """Generate all texts by plain decoding; `costs`: step costs as JSON. Raises ModelRefused."""
    folder, off = target_folder(settings), SpeculationBounds(enabled=False)
    tokenizer = Tokenizer(folder)
    runner = target_runner(folder, settings, tokenizer.context_tokens)
    pipeline = build_local(settings, Models(runner, costs, {}, tokenizer))
    asked = [(domain, prompt) for domain, own in prompts.items() for prompt in own]
    records = [
        pipeline.submit(GenerateRequest(prompt=prompt, max_tokens=max_tokens, speculation=off), settings)
        for _, prompt in asked
    ]
    states: dict[tuple[str, int], str] = {}
    while sequences := pipeline.verifier.sequences.all():
        pipeline.step()
        for sequence in sequences:
            states[sequence.record.id, sequence.generated] = (sequence.kv.state or b"").hex()
    ends = [pipeline.store.snapshot(record.id) for record in records]
    return tuple(
        Remembered(
            domain=domain,
            prompt_ids=end.record.prompt_ids,
            tokens=end.tokens,
            states=tuple(states.get((end.record.id, i + 1)) for i in range(len(end.tokens))),
        )
        for (domain, _), end in zip(asked, ends, strict=True)
    )


class RememberedTarget(LogTarget):
    """A target that has its texts by heart, and knows no others. Its steps take no time."""

    def __init__(self, texts: Iterable[Remembered]) -> None:
        PagedRunner.__init__(self, PagePool(MEMORY_TOKENS // PAGE_TOKENS, PAGE_TOKENS), shares=False)
        self._remembered = tuple(texts)
        self._by_request: dict[str, Remembered] = {}

    def launch(self, works: list[BatchEntry]) -> StepOnCollect:
        return StepOnCollect(lambda: [RememberedRows(self._text(work), work) if work.final else None for work in works])

    def _text(self, work: BatchEntry) -> Remembered:
        request_id, tokens = work.sequence.id, tuple(work.sequence.tokens)
        if request_id not in self._by_request:
            fits = (text for text in self._remembered if tokens[: len(text.prompt_ids)] == text.prompt_ids)
            self._by_request[request_id] = next(fits)
        return self._by_request[request_id]


@dataclass(frozen=True, slots=True)
class RememberedRows(LogRows):
    text: Remembered
    work: BatchEntry

    def state(self, node: int) -> bytes | None:
        at = len(self.work.sequence.tokens) - len(self.text.prompt_ids) + self.work.tree.depths()[node]
        return bytes.fromhex(self.text.states[at] or "") or None
