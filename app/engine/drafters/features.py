"""Feed the target's last hidden state h, normed, to a drafter: W h + b is added to the last committed token's
embedding.

Elsewhere a learnt vector, `absent`, is added. The idea is EAGLE's (Li et al. 2024, arXiv:2401.15077).
"""

from dataclasses import dataclass

import numpy as np

from app.engine.weights.blocks import Weight, dense
from app.state import BatchEntry


@dataclass(frozen=True, slots=True)
class Features:
    weight: np.ndarray  # (d, d') float32: W, from the target's width d' to the drafter's d
    bias: np.ndarray  # (d,) float32: b
    absent: np.ndarray  # (d,) float32

    def rows(self, works: list[BatchEntry]) -> np.ndarray:
        rows = np.tile(self.absent, (sum(len(work.tokens) for work in works), 1))
        last = -1
        for work in works:
            last += len(work.tokens)
            state = self._read(work.sequence.state) if work.final else None
            if state is not None:
                rows[last] = self.weight @ state + self.bias
        return rows

    def absent_rows(self, count: int) -> np.ndarray:
        """Return the vectors to add to guesses, (count, d) float32."""
        return np.tile(self.absent, (count, 1))

    def _read(self, state: bytes | None) -> np.ndarray | None:
        if state is None or len(state) != 2 * self.weight.shape[1]:
            return None
        found = np.frombuffer(state, "<f2").astype(np.float32)
        return found if np.isfinite(found).all() else None


def features_of(weights: dict[str, Weight]) -> Features | None:
    """Take `feature.weight` (d, d'), `feature.bias` (d,) and `absent` (d,) out of the weights, or None."""
    if "feature.weight" not in weights:
        return None
    names = ("feature.weight", "feature.bias", "absent")
    return Features(*(np.ascontiguousarray(dense(weights.pop(name)).numpy()) for name in names))
