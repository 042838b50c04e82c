"""How near drafted tokens came to those that were said: CoSine's agreement, by the target's embedding."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from app.engine.weights.tensors import target_embedding


def embedding_agreement(target: Path) -> Callable[[Sequence[int], Sequence[int]], float]:
    """(drafted, said) of equal length -> mean over the positions of (1 + cosine) / 2 of the two tokens' embeddings.

    As in CoSine (arXiv:2503.10325): near misses count. Holds the embedding, (V, d), in float16. Raises ModelRefused.
    """
    rows = torch.nn.functional.normalize(target_embedding(target), dim=-1).half()  # (V, d)

    def agreement(drafted: Sequence[int], said: Sequence[int]) -> float:
        if not drafted:
            return 0.0
        cosine = (rows[list(drafted)].float() * rows[list(said)].float()).sum(dim=-1)
        return float(cosine.mean()) / 2.0 + 0.5

    return agreement
