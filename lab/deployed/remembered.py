"""Let a target generate its texts once, and another one answer from them without computing.

For a machine that cannot compute a stated device's steps in their time. A text depends on no draft (design D1).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from app.assembly.devices import target_runner
from app.assembly.local import Models
from app.config import Settings
from app.engine.kv.block_manager import PagedRunner
from app.engine.kv.pages import PagePool
from app.engine.kv.sizing import PAGE_TOKENS
from app.engine.target import StepOnCollect
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import target_folder
from app.state import BatchEntry
from bench.prompts import Prompts
from lab import plain_texts
from lab.simulate.log import Text
from lab.simulate.models import MEMORY_TOKENS, LogRows, LogTarget


class Remembered(Text):
    """A text with the target's last hidden state where it chose each token, hexadecimal; empty: it gave none."""

    states: tuple[str, ...]


TEXTS = TypeAdapter(tuple[Remembered, ...])


def generated(settings: Settings, prompts: Prompts, costs: str, **fields: Any) -> tuple[Remembered, ...]:
    """Generate all texts by plain decoding; `costs`: step costs as JSON; `fields`: others of the requests.

    Raises ModelRefused.
    """
    folder = target_folder(settings)
    tokenizer = Tokenizer(folder)
    runner = target_runner(folder, settings, tokenizer.context_tokens)
    texts, states = plain_texts.generated(settings, Models(runner, costs, {}, tokenizer), prompts, **fields)
    return tuple(
        Remembered(**dict(text), states=tuple((own.get(i + 1) or b"").hex() for i in range(len(text.tokens))))
        for text, own in zip(texts, states, strict=True)
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
        return bytes.fromhex(self.text.states[at]) or None
