"""Declare the forward of a model."""

from typing import NamedTuple, Protocol

import numpy as np
import torch

from app.engine.early_exit.controller import ExitReport
from app.engine.packing import PackedBatch


class KVShape(NamedTuple):
    num_layers: int
    num_key_heads: int
    head_dim: int


class Output(NamedTuple):
    logits: torch.Tensor  # (N, V)
    best: list[int]  # (N,) the largest one's index; negative where a row's logits are not all finite numbers
    hidden: np.ndarray | None  # (N, d) float32, the normed states the head read; None where they are not kept


class Checkpoints(Protocol):
    """A hook between two layers, which may drop rows."""

    layers: tuple[int, ...]  # after so many layers, rising
    took_s: float  # seconds of the pass that they took, but for waking threads again; the forward adds to it

    def keep(self, layer: int, states: np.ndarray) -> np.ndarray | None:
        """Return the rows, rising, that go on after this layer; None: all. states: (T, d) float32, no copy."""
        ...

    def report(self) -> ExitReport: ...


class Forward(Protocol):
    shape: KVShape
    max_positions: int
    vocab_size: int  # tokens it can read; its head may know fewer

    def logits(self, plan: PackedBatch, checkpoints: Checkpoints | None = None) -> Output:
        """Write the rows' keys and values, and return the wanted rows' logits. Raises ModelRefused.

        Dropped rows have no logits.
        """
        ...
