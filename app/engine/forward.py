"""What a model runner asks of a model: the logits of a packed plan's wanted rows."""

from typing import NamedTuple, Protocol

import numpy as np
import torch

from app.engine.plan import Plan


class Shape(NamedTuple):
    """What decides the size of a KV cache."""

    num_layers: int
    num_key_heads: int
    head_dim: int


class Output(NamedTuple):
    """What a pass says of its wanted rows."""

    logits: torch.Tensor  # (N, V)
    best: list[int]  # (N,) the largest one's index; negative where a row's logits are not all finite numbers
    hidden: np.ndarray | None  # (N, d) float32, the normed states the head read; None where nobody keeps them


class Forward(Protocol):
    """A loaded model behind one packed pass."""

    shape: Shape
    max_positions: int
    vocab_size: int  # tokens it can read; its head may know fewer

    def logits(self, plan: Plan) -> Output:
        """Write the rows' keys and values; what the model says after the wanted rows. Raises ModelRefused."""
        ...
