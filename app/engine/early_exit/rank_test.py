"""Test draft tokens by their rank in an intermediate state: FASER's early exit (arXiv:2604.20503, papers 2.2).

At a checkpoint a node's parent has the state h (d,). With E the head's rows, g the last norm's weight and C some
hundred frequent tokens, z = E (g h / rms(h)). A token is rejected if K or more tokens of C have a larger z; K falls
with depth. `./paceline fit-pruning` finds C and K.
"""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from app.engine.early_exit.rows import Checkpoint
from app.engine.weights.blocks import Weight, dense, take
from app.engine.weights.tensors import Stored, embedding_sha256
from app.errors import ModelRefused

log = logging.getLogger(__name__)
CARD = "pruning.json"
HEADS = ("lm_head.weight", "model.embed_tokens.weight")
EPSILON = 1e-5


class RowCost(NamedTuple):
    """Multiply-adds, without attention's."""

    num_layers: int
    layer: int  # of one layer
    head: int

    def checkpoints(self, layers: Iterable[int]) -> tuple[Checkpoint, ...]:
        whole = self.num_layers * self.layer + self.head
        return tuple(Checkpoint(n, ((self.num_layers - n) * self.layer + self.head) / whole) for n in sorted(layers))


class Lens:
    """Read intermediate states as logits of single tokens, by the target's last norm and head."""

    def __init__(self, norm: np.ndarray, head: Weight, common: np.ndarray) -> None:
        """norm: (d,) float32; head: (V, d), expanded row by row; common: (C,) int64, the frequent tokens."""
        self._norm, self._head = norm, head
        self._ids, self._common = common, np.ascontiguousarray(_rows(head, common).T)  # (d, C)

    @classmethod
    def of(cls, target: Path, common: np.ndarray) -> Self:
        """Raises ModelRefused."""
        return cls(dense(_weight(target, ("model.norm.weight",))).numpy(), _weight(target, HEADS), common)

    def likelier(self, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Count the frequent tokens likelier than tokens (n,) at states (n, d) float32; return (n,) int64."""
        scale = np.sqrt(np.square(states).mean(1, keepdims=True) + EPSILON)
        read = np.asarray(states / scale, np.float32) * self._norm
        own = np.einsum("nd,nd->n", read, _rows(self._head, tokens))
        is_likelier = (read @ self._common > own[:, None]) & (self._ids != tokens[:, None])
        counts: np.ndarray = is_likelier.sum(1)
        return counts


class RankTest:
    def __init__(self, lens: Lens, ranks: dict[int, int], cost: RowCost) -> None:
        """`ranks`: K by layers passed."""
        self.checkpoints = cost.checkpoints(ranks)
        self._lens, self._ranks = lens, ranks

    def rejects(self, layer: int, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._lens.likelier(states, tokens) >= self._ranks[layer]
        return found


def load_rank_test(folder: Path, target: Path) -> RankTest | None:
    """None if it belongs to another target. Raises ModelRefused."""
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text())
        if card["embedding_sha256"] != embedding_sha256(target):
            log.info("the rank test in %s is of another target: no row leaves early", folder)
            return None
        ranks = {int(layer): int(rank) for layer, rank in card["ranks"].items()}
        return RankTest(Lens.of(target, np.array(card["common"], np.int64)), ranks, RowCost(**card["row_cost"]))
    except KeyError as error:
        raise ModelRefused(f"{folder / CARD} has no {error}: `paceline fit-pruning` writes it") from None
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{folder / CARD} cannot be read: {error}") from None


def _rows(head: Weight, tokens: np.ndarray) -> np.ndarray:
    rows: np.ndarray = dense(take(head, tokens)).numpy().astype(np.float32)
    return rows


def _weight(target: Path, names: tuple[str, ...]) -> Weight:
    weights = Stored(target)
    for name in names:
        if name in weights:
            return weights[name]
    raise ModelRefused(f"{target} has none of the weights {', '.join(names)}")
