"""Hold a weight as its file does: a tensor, or blocks of a quantised ggml type."""

from collections.abc import Mapping
from dataclasses import dataclass

import gguf
import numpy as np
import torch

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A weight (N, K) in a quantised ggml type. Equal to itself alone."""

    type: str  # ggml's name
    rows: np.ndarray  # (N, bytes of a row) uint8
    depth: int

    def dense(self) -> torch.Tensor:
        return torch.from_numpy(gguf.quants.dequantize(self.rows, gguf.GGMLQuantizationType[self.type]))


Weight = torch.Tensor | Blocks
Weights = Mapping[str, Weight]  # by their names in Hugging Face's modules


def take(weight: Weight, rows: np.ndarray | slice) -> Weight:
    return Blocks(weight.type, weight.rows[rows], weight.depth) if isinstance(weight, Blocks) else weight[rows]


def dense(weight: Weight, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (weight.dense() if isinstance(weight, Blocks) else weight.detach()).to(dtype)


def shape_of(weight: Weight) -> tuple[int, int]:
    """Return (N, K) of a linear weight."""
    return (len(weight.rows), weight.depth) if isinstance(weight, Blocks) else (weight.shape[0], weight.shape[1])
