from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from app.engine.drafters.guesser import is_greedy, likeliest, sampled
from app.engine.drafters.loader import card_of, modules_of, parts_of
from app.engine.gpu.load import checked_weights, load_weights, move
from app.engine.gpu.runner import DeviceRunner
from app.engine.gpu.weights import Weights
from app.state import BatchEntry, CachedSequence, Guess, Tree

FEW = 16  # tokens that a step reads of a sequence, all of whose rows it may as well rate: then it is one of fixed size

REHEARSED_ROWS = 128


class DeviceGuesser:
    reads_state = False  # the target's states are not fetched from the device

    def __init__(
        self,
        weights: Weights,
        head_ids: torch.Tensor | None,
        *,
        kv_bytes: int,
        page_tokens: int,
        has_graphs: bool = True,
    ) -> None:
        """head_ids: (Vh,) int64, the token of each row of the head; None: all."""
        self._runner = DeviceRunner(weights, kv_bytes=kv_bytes, page_tokens=page_tokens, has_graphs=has_graphs)
        self._host_head_ids = head_ids
        self._head_ids = None if head_ids is None else head_ids.to(weights.embedding.device)
        self.max_context = weights.max_positions
        self.weights = str(weights.embedding.dtype).removeprefix("torch.")

    def rehearse(self) -> None:
        """Launch every kernel, to compile it now."""
        self._runner.rehearse(REHEARSED_ROWS)

    def try_reserve(self, work: BatchEntry, ahead: int) -> bool:
        return self._runner.pool.try_grow(work.sequence.pages, work.start + len(work.tokens) + ahead)

    def release(self, sequence: CachedSequence) -> None:
        self._runner.release(sequence)

    def fork(self, sequence: CachedSequence, tokens: list[int]) -> CachedSequence | None:
        return self._runner.fork(sequence, tokens)

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        self._runner.cover(sequence, tokens)

    def invalidate(self, work: BatchEntry) -> None:
        self._runner.invalidate(work)

    @torch.inference_mode()
    def guess(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Guess]]:
        """`depth` and `floor` are ignored: one guess for each final batch entry."""
        stretched = [_stretched(work) for work in works]
        logits = self._runner.logits(stretched).float()
        ends = accumulate(1 + len(work.tree) if work.final else 0 for work in stretched)
        last = {i: end - 1 for i, (work, end) in enumerate(zip(works, ends, strict=True)) if work.final}
        greedy = {i: row for i, row in last.items() if is_greedy(works[i])}
        found: list[list[Guess]] = [[] for _ in works]
        best = likeliest(logits[[*greedy.values()]], self._head_ids) if greedy else []
        for i, guess in zip(greedy, best, strict=True):
            found[i] = [guess]
        for i in last.keys() - greedy.keys():
            position = works[i].start + len(works[i].tokens)
            row = logits[last[i]].cpu()
            if not row.isfinite().all():
                raise ArithmeticError("the model's logits are not finite")
            found[i] = [sampled(row, self._host_head_ids, position, works[i].sequence.sampling)]
        if not all(guess.confidence >= 0.0 for guesses in found for guess in guesses):
            raise ArithmeticError("the model's logits are not finite")
        return found


def load_device_guesser(
    folder: Path, target: Path, device: torch.device, dtype: torch.dtype, *, kv_bytes: int, page_tokens: int
) -> DeviceGuesser:
    """Raises ModelRefused."""
    guesser = _load(folder, target, device, dtype, kv_bytes=kv_bytes, page_tokens=page_tokens)
    guesser.rehearse()
    return guesser


def _load(
    folder: Path, target: Path, device: torch.device, dtype: torch.dtype, *, kv_bytes: int, page_tokens: int
) -> DeviceGuesser:
    card = card_of(folder)
    if card.get("embedding") != "target":
        return DeviceGuesser(load_weights(folder, device, dtype), None, kv_bytes=kv_bytes, page_tokens=page_tokens)
    parts = parts_of(folder, target, card.get("embedding_sha256"))
    model: Any = modules_of(folder, parts, dtype)  # cast later, its rotation would be rounded, too
    move(model, device)
    if parts.features is not None:  # no state ever comes, so what stands for none is a part of every embedding
        embedding = model.get_input_embeddings()
        absent = torch.from_numpy(parts.features.absent).to(device, dtype)
        embedding.weight = nn.Parameter(embedding.weight + absent, requires_grad=False)
    return DeviceGuesser(checked_weights(model), parts.head_ids, kv_bytes=kv_bytes, page_tokens=page_tokens)


def _stretched(work: BatchEntry) -> BatchEntry:
    """Turn tokens into a chain below the first, so that all rows are wanted."""
    if not work.final or not 1 < len(work.tokens) <= FEW:
        return work
    first, *rest = work.tokens
    chain = Tree(rest, list(range(len(rest))), [1.0] * len(rest), [()] * len(rest))
    return replace(work, tokens=[first], tree=chain)
