"""Measure the similarity of drafted to committed tokens: CoSine's agreement (arXiv:2503.10325)."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from app.engine.weights.blocks import dense
from app.engine.weights.tensors import stored_embedding


def embedding_agreement(target: Path) -> Callable[[Sequence[int], Sequence[int]], float]:
    """Return a function of (drafted, committed), two lists of ids of equal length: the mean of (1 + cosine) / 2."""
    rows = torch.nn.functional.normalize(dense(stored_embedding(target)), dim=-1).half()  # (V, d)

    def agreement(drafted: Sequence[int], committed: Sequence[int]) -> float:
        if not drafted:
            return 0.0
        cosine = (rows[list(drafted)].float() * rows[list(committed)].float()).sum(dim=-1)
        return float(cosine.mean()) / 2.0 + 0.5

    return agreement
