"""What a drafter reads of the target: at the last committed token, W h + b is added to the token's embedding.

h is the target's last hidden state, normed, where it chose that token; it came with the job. At every other position
stands a learnt vector, `absent`: guesses have no such state, nor have tokens that were read before. (The idea is
EAGLE's, Li et al. 2024, arXiv:2401.15077; one state a round instead of one a token keeps the messages small.)
"""

from dataclasses import dataclass

import numpy as np
import torch

from app.state import BatchEntry


@dataclass(frozen=True, slots=True)
class Features:
    """A drafter's way of reading states."""

    weight: np.ndarray  # (d, d') float32: W, from the target's width d' to the drafter's d
    bias: np.ndarray  # (d,) float32: b
    absent: np.ndarray  # (d,) float32

    def rows(self, works: list[BatchEntry]) -> np.ndarray:
        """(T, d) what is added to the works' packed rows. A state that is not d' finite numbers is none."""
        rows = np.tile(self.absent, (sum(len(work.tokens) for work in works), 1))
        last = -1
        for work in works:
            last += len(work.tokens)
            state = self._read(work.sequence.state) if work.final else None
            if state is not None:
                rows[last] = self.weight @ state + self.bias
        return rows

    def absent_rows(self, count: int) -> np.ndarray:
        """(count, d) what is added to guesses."""
        return np.tile(self.absent, (count, 1))

    def _read(self, state: bytes | None) -> np.ndarray | None:
        if state is None or len(state) != 2 * self.weight.shape[1]:
            return None
        found = np.frombuffer(state, "<f2").astype(np.float32)
        return found if np.isfinite(found).all() else None


def features_of(weights: dict[str, torch.Tensor]) -> Features | None:
    """Take a drafter's features out of its weights; None if it has none."""
    if "feature.weight" not in weights:
        return None
    names = ("feature.weight", "feature.bias", "absent")
    return Features(*(np.ascontiguousarray(weights.pop(name).float().numpy()) for name in names))
