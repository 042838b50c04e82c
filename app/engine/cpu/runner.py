"""Run batch entries over one model on the CPU."""

from collections import Counter
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from app.config import KVDtype
from app.engine.cpu.forward import Checkpoints, Forward
from app.engine.cpu.fused import FusedForward
from app.engine.early_exit.controller import ExitReport
from app.engine.early_exit.rows import Predictor, RowPruner
from app.engine.kv.block_manager import PagedRunner
from app.engine.kv.pages import KVCache, PagePool, bytes_per_page
from app.engine.packing import PackedBatch, forks, plan
from app.engine.sampling_parameters import choice_of, is_penalised, is_shaped, row_logprobs, row_of
from app.engine.target import StepOnCollect
from app.errors import ModelRefused
from app.request import Sampling, TokenLogprobs
from app.state import BatchEntry
from kernels.sampling.contenders import target_token, warm_up
from kernels.sampling.target_token import shaped


@dataclass(slots=True)
class CPURows:
    """Row 0 follows the entry's last token, row i tree node i."""

    rows: torch.Tensor  # (1 + N, V) float32
    greedy: torch.Tensor | list[int]  # (1 + N,) argmax of each row
    states: np.ndarray | None = None  # (1 + N, d) float32, what the head read; None where states are not kept
    places: dict[int, int] | None = None  # the row of each node where some have been pruned; they have none

    def token(
        self, node: int, position: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> int:
        if sampling.temperature == 0.0 and mask is None and not is_shaped(sampling):
            return int(self.greedy[self.row(node)])
        return target_token(self._shaped(node, sampling, history, mask), choice_of(sampling), position)

    def logprobs(
        self, node: int, token: int, top: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> TokenLogprobs:
        """Equal ones by rising id."""
        return row_logprobs(self._shaped(node, sampling, history, mask), token, top)

    def _shaped(
        self, node: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None
    ) -> torch.Tensor:  # (V,)
        own = self.rows[self.row(node)]
        if mask is None and not is_shaped(sampling):
            return own
        counts = Counter(history) if is_penalised(sampling) else {}
        return shaped(own, row_of(sampling, len(history), counts, mask))

    def state(self, node: int) -> bytes | None:
        return None if self.states is None else self.states[self.row(node)].astype("<f2").tobytes()

    def row(self, node: int) -> int:
        """Raises KeyError for a pruned node."""
        return node if self.places is None else self.places[node]


class ModelRunner(PagedRunner):
    def __init__(
        self, model: Forward, *, kv_bytes: int, page_tokens: int, shares: bool = False, kv_dtype: KVDtype = "float32"
    ) -> None:
        """Raises ModelRefused for pages that the model does not read."""
        if kv_dtype != "float32" and not isinstance(model, FusedForward):
            raise ModelRefused(f"PACELINE_KV_DTYPE={kv_dtype} needs a model that the compiled forward takes")
        self.model = model
        self.predictor: Predictor | None = None  # of rows that leave early; None: no early exit
        self.exits = ExitReport()  # of the last pass
        num_pages = max(2, min(kv_bytes // bytes_per_page(*model.shape, page_tokens, kv_dtype), 2**20))
        super().__init__(PagePool(num_pages, page_tokens), shares=shares)
        warm_up()
        self.kv = KVCache(model.shape.num_layers, num_pages, *model.shape[1:], page_tokens, kv_dtype)

    def forward(self, works: list[BatchEntry], added: np.ndarray | None = None) -> list[CPURows | None]:
        """Return logits for final batch entries, None for prompt chunks.

        added: (T, hidden) float32, see `PackedBatch`. Raises ArithmeticError for logits that are not finite; then
        `invalidate` the entries.
        """
        packed = plan(works, self.kv)
        packed.added = added
        return self._run(works, packed)

    def launch(self, works: list[BatchEntry]) -> StepOnCollect:
        return StepOnCollect(partial(self._run, works, plan(works, self.kv)))

    def _run(self, works: list[BatchEntry], packed: PackedBatch) -> list[CPURows | None]:
        checkpoints = self._checkpoints(works)
        rows, greedy, states = self.model.logits(packed, checkpoints)
        self.exits = checkpoints.report() if checkpoints else ExitReport()
        if min(greedy, default=0) < 0:
            raise ArithmeticError("the model's logits are not finite")
        if len(works) == 1 and works[0].final:
            return [CPURows(rows, greedy, states, _places(works[0]))]
        out: list[CPURows | None] = []
        first = 0
        for work in works:
            size = 1 + len(work.tree) - len(work.pruned)
            own = slice(first, first + size)
            seen = None if states is None else states[own]
            out.append(CPURows(rows[own], greedy[own], seen, _places(work)) if work.final else None)
            first += size if work.final else 0
        return out

    def _checkpoints(self, works: list[BatchEntry]) -> Checkpoints | None:
        if self.predictor is None or not any(work.may_exit for work in works):
            return None
        return RowPruner(self.predictor, works)

    def try_reserve(self, work: BatchEntry, ahead: int = 0) -> bool:
        """`ahead`: tokens beside the entry's rows and forks. All or none."""
        size, below = self.pool.page_tokens, work.start + len(work.tokens)
        branches = forks(work.tree)
        held = len(work.sequence.pages)
        if self.pool.try_grow(work.sequence.pages, below + len(work.tree.main_branch()) + ahead):
            for fork in branches:
                first = (below + fork.leaves) // size * size  # position of the fork's first slot
                if not self.pool.try_grow(fork.pages, below + len(fork.path) - first):
                    break
            else:
                work.forks = branches
                return True
        for fork in branches:
            self.pool.release(fork.pages)
        self.pool.trim(work.sequence.pages, held * size)
        return False

    def accept(self, work: BatchEntry, path: list[int]) -> None:
        """A fork's pages replace the sequence's own."""
        pages, below = work.sequence.pages, work.start + len(work.tokens)
        if path and path[-1] not in work.tree.main_branch():
            fork = next(fork for fork in work.forks if fork.path[: len(path)] == path)
            cut = (below + fork.leaves) // self.pool.page_tokens
            pages[cut:], fork.pages = fork.pages, pages[cut:]
        self._keep(work, below + len(path))

    def _copy(self, to: int, of: int) -> None:
        self.kv.copy_page(to, of)

    def _clear(self, pages: list[int]) -> None:
        self.kv.clear(pages)


def _places(work: BatchEntry) -> dict[int, int] | None:
    if not work.pruned:
        return None
    return {node: i for i, node in enumerate(n for n in range(1 + len(work.tree)) if n not in work.pruned)}
