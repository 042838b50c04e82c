"""What a model runner asks of a model: the logits of a packed plan's wanted rows."""

from typing import NamedTuple, Protocol

import numpy as np
import torch

from app.engine.packing import PackedBatch


class KVShape(NamedTuple):
    """What decides the size of a KV cache."""

    num_layers: int
    num_key_heads: int
    head_dim: int


class Output(NamedTuple):
    """What a pass says of its wanted rows."""

    logits: torch.Tensor  # (N, V)
    best: list[int]  # (N,) the largest one's index; negative where a row's logits are not all finite numbers
    hidden: np.ndarray | None  # (N, d) float32, the normed states the head read; None where nobody keeps them


class Checkpoints(Protocol):
    """Looks at a pass on its way (`app.engine.early_exit.rows`)."""

    layers: tuple[int, ...]  # after so many layers, rising
    took_s: float  # what they took of the pass; the forward adds to it

    def keep(self, layer: int, states: np.ndarray) -> np.ndarray | None:
        """The rows to go on with, of those that are there, rising; None: all. states: theirs (T, d), no copy."""
        ...


class Forward(Protocol):
    """A loaded model behind one packed pass."""

    can_prune: bool  # does it heed checkpoints?
    shape: KVShape
    max_positions: int
    vocab_size: int  # tokens it can read; its head may know fewer

    def logits(self, plan: PackedBatch, checkpoints: Checkpoints | None = None) -> Output:
        """Write the rows' keys and values; what the model says after the wanted rows. Raises ModelRefused.

        Rows that `checkpoints` drop have no logits, and their keys and values are written in the first layers only.
        """
        ...
