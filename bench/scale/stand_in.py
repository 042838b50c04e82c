"""A target that takes a stated time and says known texts, and a drafter that knows them.

Everything else of a deployment is real around them: pages, the arrays that a step sends to a device,
scheduling, commits, mail, Redis. So what is left of a round beside the stated time is the host's.
"""

import time
from collections.abc import Sequence as Listed
from typing import Final
from zlib import crc32

import numpy as np
import torch

from app.engine.gpu.input_batch import TIERS, Arrays, Cut, Size, fields, fill, layout_of, tier_size
from app.engine.gpu.page_table import PageTable, TabledRunner
from app.engine.kv.pages import PagePool
from app.messages import Draft
from app.request import Sampling, TokenLogprobs
from app.stages.draft.protocol import Context, draft_of
from app.state import BatchEntry
from kernels.attention.ragged_attention import PREFILL, VERIFY

PAGE_TOKENS = 16
FIRST_ID = 256  # the tokens that are said: no control tokens among them
IDS = 4096
CUT = Cut(4, VERIFY, PREFILL)  # as an 8B model's attention is cut on a GPU
DEVICE = torch.device("meta")
ALIKE = 2**20  # a chance's steps


def token_at(request_id: str, position: int) -> int:
    """Return the token that the target says at this position of the request's sequence."""
    return FIRST_ID + crc32(b"%d" % position, crc32(request_id.encode())) % IDS


class StandInRows:
    """An entry's rows: whatever the node, the text is known."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def token(
        self, node: int, position: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> int:
        """Return the known token for `position`."""
        return token_at(self._request_id, position)

    def logprobs(
        self, node: int, token: int, top: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> TokenLogprobs:
        """Refuse: no probabilities are known."""
        raise NotImplementedError("the stand-in target knows no probabilities")

    def state(self, node: int) -> bytes | None:
        """Return None: it keeps no states."""
        return None


class StandInTable(PageTable):
    """A page table on torch's meta device, where `scatter_` would be Python."""

    def _write(self, at: torch.Tensor, pages: torch.Tensor) -> None:
        self.device.put_(at, pages)


class StandInTarget(TabledRunner):
    """A target without a model: real pages and real input arrays, and a step of `step_s` whatever is in it."""

    def __init__(self, step_s: float, *, vocab_size: int, tokens: int, longest: int) -> None:
        """Have pages for `tokens` in all, and the arrays of a GPU's tiers for sequences of up to `longest` tokens."""
        pool = PagePool(tokens // PAGE_TOKENS, PAGE_TOKENS)
        table = StandInTable(pool.num_pages, longest, PAGE_TOKENS, vocab_size, DEVICE)  # each sequence has a page
        super().__init__(pool, table, shares=True)
        sizes = {rows: tier_size(rows, longest, CUT) for rows in TIERS}
        self._tiers = {rows: (size, _arrays(size)) for rows, size in sizes.items()}
        self._step_s = step_s
        self.exposed_s: Final[list[float]] = []  # of each step: from the last one's end to the launch of this one
        self._ended_s = 0.0

    def launch(self, works: list[BatchEntry]) -> "StandInStep":
        """Fill the arrays; the step's time runs from then on, as on a device of its own."""
        table = self.page_table
        layout = layout_of(works, CUT, table.update(works))
        size = layout.size(changes=len(table.changes))
        tier, arrays = self._tiers.get(size.tier, (size, None))
        if arrays is None or not tier.holds(size):
            arrays = _arrays(size)
        fill(arrays, layout, table.host, PAGE_TOKENS, table.limits, table.changes)
        table.launch(arrays)
        launched_s = time.perf_counter()
        self.exposed_s.append(launched_s - self._ended_s)
        self._ended_s = launched_s + self._step_s
        return StandInStep(works, self._step_s, self._ended_s)

    def try_reserve(self, work: BatchEntry) -> bool:
        """Reserve pages for the entry's tokens and nodes."""
        rows = len(work.tokens) + len(work.tree)
        return self.pool.try_grow(work.sequence.pages, work.start + rows)

    def accept(self, work: BatchEntry, path: list[int]) -> None:
        """Count the entry's tokens and the accepted nodes as cached."""
        self._keep(work, work.start + len(work.tokens) + len(path))

    def _clear(self, pages: list[int]) -> None:
        """There is nothing in the pages."""


def _arrays(size: Size) -> Arrays:
    """Make the host side of a step's arrays; as on a GPU, sending them takes no time that grows with them."""
    return Arrays(fields(size, PAGE_TOKENS), DEVICE)


class StandInStep:
    """A step under way until its time is over. Implements `app.engine.target.LaunchedStep`."""

    def __init__(self, works: list[BatchEntry], took_s: float, ends_s: float) -> None:
        """Take `took_s` seconds, until `ends_s` by `time.perf_counter`."""
        self._works, self._ends_s = works, ends_s
        self.took_s: Final = took_s
        self.runs_beside: Final = True

    def collect(self) -> list[StandInRows | None]:
        """Wait for the rest of the time without the GIL; return rows for the final entries."""
        left_s = self._ends_s - time.perf_counter()
        if left_s > 0.0:
            time.sleep(left_s)
        return [StandInRows(work.sequence.id) if work.final else None for work in self._works]


class StandInDrafter:
    """A model-free drafter that knows the target's texts, and errs at a token with chance 1 - `rate`."""

    name = "lookup"

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def draft(self, contexts: Listed[Context]) -> list[Draft]:
        """Draft a chain for each context."""
        return [self._draft(context) for context in contexts]

    def update(self, context: Context) -> None:
        """There is nothing to learn."""

    def remove(self, request_id: str) -> None:
        """There is nothing to free."""

    def _draft(self, context: Context) -> Draft:
        first = len(context.tokens)
        tokens = []
        for position in range(first, first + context.max_draft_tokens):
            token = token_at(context.request_id, position)
            is_right = crc32(b"%d" % token, position) % ALIKE < self._rate * ALIKE
            tokens.append(token if is_right else token - FIRST_ID)
        chances = [self._rate] * len(tokens)
        return draft_of(self.name, context, tokens, range(len(tokens)), chances)
