"""What a model runner asks of a model: the logits of a packed plan's wanted rows."""

from typing import NamedTuple, Protocol

import torch

from app.engine.plan import Plan


class Shape(NamedTuple):
    """What decides the size of a KV cache."""

    num_layers: int
    num_key_heads: int
    head_dim: int


class Forward(Protocol):
    """A loaded model behind one packed pass."""

    shape: Shape
    max_positions: int
    vocab_size: int  # tokens it can read; its head may know fewer

    def logits(self, plan: Plan) -> tuple[torch.Tensor, list[int]]:
        """Write the rows' keys and values; logits (N, V) of the wanted rows, and the largest one's index in each.

        The index is negative where a row's logits are not all finite numbers. Raises ModelRefused.
        """
        ...
