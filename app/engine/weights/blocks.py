"""Hold a weight as its file does: a tensor, or blocks of a quantised ggml type."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import gguf
import numpy as np
import torch

JOINED = 8  # rows that are one for gguf, which takes sixteen at a time: its calls took half of the time
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A weight (N, K) in a quantised ggml type. Equal to itself alone."""

    type: str  # ggml's name
    rows: np.ndarray  # (N, bytes of a row) uint8
    depth: int

    def dense(self) -> torch.Tensor:
        return torch.from_numpy(by_rows(gguf.quants.dequantize, self.rows, self.type))


Weight = torch.Tensor | Blocks
Weights = Mapping[str, Weight]  # by their names in Hugging Face's modules


def by_rows(
    convert: Callable[[np.ndarray, gguf.GGMLQuantizationType], np.ndarray], rows: np.ndarray, kind: str
) -> np.ndarray:
    """Convert whole rows from or to a ggml type, by gguf's function."""
    joined = rows.reshape(len(rows) // math.gcd(len(rows), JOINED), -1)
    return convert(joined, gguf.GGMLQuantizationType[kind]).reshape(len(rows), -1)


def take(weight: Weight, rows: np.ndarray | slice) -> Weight:
    return Blocks(weight.type, weight.rows[rows], weight.depth) if isinstance(weight, Blocks) else weight[rows]


def dense(weight: Weight, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (weight.dense() if isinstance(weight, Blocks) else weight.detach()).to(dtype)


def shape_of(weight: Weight) -> tuple[int, int]:
    """Return (N, K) of a linear weight."""
    return (len(weight.rows), weight.depth) if isinstance(weight, Blocks) else (weight.shape[0], weight.shape[1])
