"""Run batch entries over one model on a GPU, with one read a step."""

import time
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import torch

from app.engine.gpu.graphs import Graphs
from app.engine.gpu.input_batch import Arrays, Size, fields, fill, layout_of, most_work, rows_of
from app.engine.gpu.kv_moves import KVMoves
from app.engine.gpu.layers import Method, Pages
from app.engine.gpu.page_table import PageTable, TabledRunner
from app.engine.gpu.step import StepOutput, choose, run
from app.engine.gpu.weights import Weights
from app.engine.history import TokenCounts, TokenHistory
from app.engine.kv.pages import PagePool
from app.engine.sampling_parameters import is_penalised, is_shaped, row_logprobs, row_of, token_logprobs
from app.errors import GenerationFailed
from app.request import Sampling, TokenLogprobs
from app.state import BatchEntry, CachedSequence
from kernels.attention.ragged_attention import MAX_TREE_ROWS
from kernels.host.step_rows import NOWHERE
from kernels.sampling.choices import Edits, pack_edits
from kernels.sampling.target_token import Choice, Row
from kernels.sampling.top_logprobs import top_logprobs

MAX_SEQUENCES = 1024  # of a step, at least
TOPS = (1, 2, 3, 5, 9, 17)  # one for each power of two up to MAX_TOP, which kernels are compiled for


@dataclass(frozen=True, slots=True)
class EditedRows:
    places: torch.Tensor  # (E,) int64 on the device, among the wanted rows
    edits: Edits


@dataclass(slots=True)
class ChosenRows:
    """The first token follows the entry's last one, the i-th tree node i."""

    tokens: list[int]
    rows: torch.Tensor  # (1 + N, V) logits on the device, until the next step
    likely: list[TokenLogprobs]  # of each row, with as many of its likeliest tokens as any batch entry wants; or empty

    def state(self, node: int) -> bytes | None:
        return None

    def token(
        self, node: int, position: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> int:
        """Chosen on the device already (design D1), by the other arguments."""
        return self.tokens[node]

    def logprobs(
        self, node: int, token: int, top: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> TokenLogprobs:
        if token != self.tokens[node] or not self.likely:  # a prompt's own token
            return row_logprobs(self.rows[node].float(), token, top)
        found = self.likely[node]
        return found.model_copy(update={"top": found.top[:top]})


class DeviceRunner(TabledRunner):
    def __init__(
        self,
        weights: Weights,
        *,
        kv_bytes: int,
        page_tokens: int,
        shares: bool = False,
        is_exact: bool = False,
        has_graphs: bool = True,
        longest_tokens: int | None = None,
        max_sequences: int = MAX_SEQUENCES,
        fuses: bool = False,
        has_own_streams: bool = False,
    ) -> None:
        """Allocate as many pages as `kv_bytes` holds, two at least.

        `is_exact`: a row's bits are independent of the batch; side branches are then not verified. `has_graphs`:
        capture the steps of fixed size now, for sequences up to `longest_tokens` with their trees. `fuses`,
        `has_own_streams`: of `Method` and `Graphs`, for benchmarks.
        """
        shape = (page_tokens, weights.num_key_heads, weights.head_dim)
        num_pages = max(2, kv_bytes // (page_tokens * weights.token_bytes))
        positions = len(weights.cos)
        # Nodes of a tree may stand at one position; and a rehearsal's few pages have the table of those that serve.
        sequences = max(max_sequences, MAX_SEQUENCES)
        vocab_size = weights.head.weight.shape[0]
        table = PageTable(sequences, positions + MAX_TREE_ROWS, page_tokens, vocab_size, weights.embedding.device)
        super().__init__(PagePool(num_pages, page_tokens), table, shares=shares)
        keys, values = (weights.embedding.new_zeros(len(weights.layers), num_pages, *shape) for _ in range(2))
        self.pages = Pages(keys, values)
        self.weights, self.is_exact = weights, is_exact
        self._method = Method.of(keys.dtype, weights.num_heads // weights.num_key_heads, is_exact=is_exact, fuses=fuses)
        self._vocab_size = vocab_size
        self._moves = KVMoves(self.pages)
        self._counts = TokenCounts()
        self._longest_tokens = min(longest_tokens or self.capacity_tokens, positions)
        self._graphs: Graphs | None = None
        if has_graphs:
            self._graphs = Graphs(
                weights, self.pages, table.device, self._method, self._longest_tokens, has_own_streams=has_own_streams
            )

    @property
    def page_bytes(self) -> int:
        return self.pages.keys.nbytes + self.pages.values.nbytes

    @torch.inference_mode()
    def rehearse(self, rows: int) -> None:
        """Run the largest step, `rows` rows with a prompt's chunk, without a write."""
        cut = self._method.cut
        # Several slices of keys, to be joined: a request from before the settings allowed less may have them.
        keys = max(self._longest_tokens, cut.narrow.split_keys + 1)
        narrow, wide = (most_work(rows, keys, cut.fold, tiling) for tiling in (cut.narrow, cut.wide))
        size = Size(rows, rows, narrow, wide, rows, moves=1)
        arrays = Arrays(fields(size, self.pool.page_tokens), self.pages.keys.device)
        arrays.device["slots"].fill_(NOWHERE)
        tensors = rows_of(arrays, size, cut, self.page_table.device)
        logits = run(self.weights, self.pages, tensors, self._method).logits[:1]
        self._moves.rehearse(arrays)
        self.page_table.rehearse()
        edited = pack_edits([Row(Choice(0.0, 1.0, 0, 0.0, 0), 0, bias={0: 1.0})], self._vocab_size, logits.device)
        assert edited is not None
        choose(logits, tensors.choices.at(torch.zeros(1, dtype=torch.int64, device=logits.device), edited))
        for edits, top in product((None, edited), TOPS):
            if top <= self._vocab_size:
                top_logprobs(logits, edits, top)

    def forward(self, works: list[BatchEntry]) -> list[ChosenRows | None]:
        """Return tokens for final batch entries, None for prompt chunks."""
        return self.launch(works).collect()

    @torch.inference_mode()
    def launch(self, works: list[BatchEntry]) -> "DeviceStep":
        _check(works, self.weights)
        edited = self._edits(works)
        started, result = self._run(works, edited)
        return DeviceStep(works, result, edited, started, _recorded(self.pages.keys.device))

    @torch.inference_mode()
    def logits(self, works: list[BatchEntry]) -> torch.Tensor:
        """Return the final entries' rows (N, V) on the device, until the next step."""
        _check(works, self.weights)
        _, result = self._run(works, None)
        return result.logits[: _wanted(works)]

    def try_reserve(self, work: BatchEntry) -> bool:
        """Reserve pages for an entry's rows: all or none; False also for a tree too large for 64 rows."""
        if self.is_exact and len(work.tree):
            work.tree = work.tree.keep(work.tree.main_branch())
        rows = len(work.tokens) + len(work.tree)
        if len(work.tree) and rows > MAX_TREE_ROWS:
            return False
        return self.pool.try_grow(work.sequence.pages, work.start + rows)

    def release(self, sequence: CachedSequence) -> None:
        super().release(sequence)
        self._counts.forget(sequence)

    def accept(self, work: BatchEntry, path: list[int]) -> None:
        below = work.start + len(work.tokens)
        self._moves.add(work.sequence.pages, below, [node - 1 for node in path])
        self._keep(work, below + len(path))

    def _run(self, works: list[BatchEntry], edited: EditedRows | None) -> "tuple[torch.cuda.Event | float, StepOutput]":
        table, moves = self.page_table, self._moves.waiting
        layout = layout_of(works, self._method.cut, table.update(works))
        size = layout.size(len(moves), len(table.changes))
        tier = self._graphs.tier(size) if self._graphs else None
        device = self.pages.keys.device
        arrays = tier.arrays if tier else Arrays(fields(size, self.pool.page_tokens), device)
        fill(arrays, layout, table.host, self.pool.page_tokens, table.limits, table.changes, moves)
        started = _recorded(device)  # not before: a device that has no work would count the host's as its own
        self._moves.launch(arrays)
        table.launch(arrays)
        if tier is None:
            rows = rows_of(arrays, size, self._method.cut, table.device)
            result = run(self.weights, self.pages, rows, self._method)
        else:
            tier.replay()
            rows, result = tier.rows, tier.result
        if edited is None:
            return started, result
        chosen = choose(result.logits[edited.places], rows.choices.at(edited.places, edited.edits))
        return started, StepOutput(result.logits, result.chosen.index_copy(1, edited.places, chosen))

    def _edits(self, works: list[BatchEntry]) -> EditedRows | None:
        rows: list[Row] = []
        places: list[int] = []
        first = 0
        for work in works:
            if not work.final:
                continue
            if work.scores is None and (is_shaped(work.sequence.sampling) or work.mask):
                rows += _rows(work, self._counts)
                places += range(first, first + 1 + len(work.tree))
            first += 1 + len(work.tree)
        edits = pack_edits(rows, self._vocab_size, self.pages.keys.device)
        return None if edits is None else EditedRows(torch.tensor(places, device=self.pages.keys.device), edits)

    def _copy(self, to: int, of: int) -> None:
        self.pages.keys[:, to] = self.pages.keys[:, of]
        self.pages.values[:, to] = self.pages.values[:, of]

    def _clear(self, pages: list[int]) -> None:
        self.pages.keys[:, pages] = 0.0
        self.pages.values[:, pages] = 0.0


class DeviceStep:
    def __init__(
        self,
        works: list[BatchEntry],
        result: StepOutput,
        edited: EditedRows | None,
        started: "torch.cuda.Event | float",
        ended: "torch.cuda.Event | float",
    ) -> None:
        self._works, self._result, self._edited = works, result, edited
        self._started, self._ended = started, ended
        self._took_s = 0.0
        self.runs_beside: Final = True

    @property
    def took_s(self) -> float:
        return self._took_s

    @torch.inference_mode()
    def collect(self) -> list[ChosenRows | None]:
        """Raises ArithmeticError for logits that are not finite; then `invalidate` the entries."""
        works, logits = self._works, self._result.logits
        wanted = _wanted(works)
        chosen = self._result.chosen.cpu()[:, :wanted]  # the one read from the device
        if isinstance(self._started, torch.cuda.Event) and isinstance(self._ended, torch.cuda.Event):
            self._took_s = self._started.elapsed_time(self._ended) / 1e3
        elif isinstance(self._started, float) and isinstance(self._ended, float):
            self._took_s = self._ended - self._started
        logprobs = chosen[1].contiguous().view(torch.float32)
        if not logprobs.isfinite().all():
            raise ArithmeticError("the model's logits are not finite")
        tokens = chosen[0].tolist()
        likely = _likely(works, logits[:wanted], self._edited, logprobs.tolist())
        out: list[ChosenRows | None] = []
        first = 0
        for work in works:
            end = first + 1 + len(work.tree)
            out.append(ChosenRows(tokens[first:end], logits[first:end], likely[first:end]) if work.final else None)
            first = end if work.final else first
        return out


def _recorded(device: torch.device) -> "torch.cuda.Event | float":
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _wanted(works: list[BatchEntry]) -> int:
    return sum(1 + len(work.tree) for work in works if work.final)


def _rows(work: BatchEntry, counts: TokenCounts) -> list[Row]:
    tokens, sampling = work.sequence.tokens, work.sequence.sampling
    paths: list[list[int]] = [[]]
    seen: list[Mapping[int, int]] = [counts.of(work.sequence) if is_penalised(sampling) else {}]
    for token, parent in zip(work.tree.tokens, work.tree.parents, strict=True):
        paths.append([*paths[parent], token])
        above = seen[parent]
        seen.append({**above, token: above.get(token, 0) + 1} if is_penalised(sampling) else above)
    return [
        row_of(sampling, len(tokens) + len(path), own, _mask(work, TokenHistory(tokens, path)))
        for path, own in zip(paths, seen, strict=True)
    ]


def _mask(work: BatchEntry, history: Listed[int]) -> np.ndarray | None:
    try:
        return work.mask(history) if work.mask else None
    except GenerationFailed:
        return None


def _likely(
    works: list[BatchEntry],
    logits: torch.Tensor,  # (N, V) of the wanted rows
    edited: EditedRows | None,
    own: list[float],  # (N,) log-probability of the token chosen in each
) -> list[TokenLogprobs]:
    tops = [top for work in works if work.final and (top := work.sequence.logprobs) is not None]
    if not tops:
        return []
    most = min(max(tops), logits.shape[1])
    if not most:
        return [token_logprobs(one, [], []) for one in own]
    ids, logprobs = top_logprobs(logits, None, most)
    if edited is not None:
        for found, of_edited in zip(
            (ids, logprobs), top_logprobs(logits[edited.places], edited.edits, most), strict=True
        ):
            found[edited.places] = of_edited
    return [token_logprobs(*row) for row in zip(own, ids.tolist(), logprobs.tolist(), strict=True)]


def _check(works: list[BatchEntry], weights: Weights) -> None:
    """Raise ValueError outside the tables: kernels check no bound."""
    for work in works:
        ids = work.tokens + work.tree.tokens
        if not 0 <= min(ids) <= max(ids) < len(weights.embedding) or work.start + len(ids) > len(weights.cos):
            raise ValueError("a token or a position is outside the model's range")
