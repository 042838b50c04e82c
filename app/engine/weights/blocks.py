"""Hold a weight as its file does: a tensor, or blocks of one of ggml's quantised types.

Knows no files.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import gguf
import numpy as np
import torch

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight (N, K) in one of ggml's quantised types, as its file holds it."""

    type: str  # ggml's name
    rows: np.ndarray  # (N, bytes of a row) uint8
    depth: int

    def take(self, rows: np.ndarray) -> "Blocks":
        """Return some of its rows: (n,) row numbers go in, a weight (n, K) comes out."""
        return Blocks(self.type, self.rows[rows], self.depth)

    def dense(self) -> torch.Tensor:
        """Return what the blocks stand for, (N, K) float32."""
        return torch.from_numpy(gguf.quants.dequantize(self.rows, gguf.GGMLQuantizationType[self.type]))


Weight = torch.Tensor | Blocks
Weights = Mapping[str, Weight]  # by their names in Hugging Face's modules


def dense(weight: Weight) -> torch.Tensor:
    """Return a weight as float32."""
    return weight.dense() if isinstance(weight, Blocks) else weight.detach().float()
