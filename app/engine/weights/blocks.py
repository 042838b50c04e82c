"""Hold a weight as its file does: a tensor, or blocks of a quantised ggml type."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import gguf
import numpy as np
import torch

PIECE = 1 << 18  # numbers, or their bytes, that gguf converts at once: what it makes of them stays in caches
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
    """Convert whole rows from or to a ggml type, by gguf's function, on as many threads as torch has."""
    size, ggml_type = max(1, PIECE // rows.shape[1]), gguf.GGMLQuantizationType[kind]

    def converted(start: int) -> np.ndarray:
        piece = rows[start : start + size]
        return convert(piece.reshape(1, -1), ggml_type).reshape(len(piece), -1)

    first = converted(0)
    found = np.empty((len(rows), first.shape[1]), first.dtype)
    found[:size] = first

    def fill(start: int) -> None:
        found[start : start + size] = converted(start)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        deque(pool.map(fill, range(size, len(rows), size)), maxlen=0)  # raises what one raised
    return found


def take(weight: Weight, rows: np.ndarray | slice) -> Weight:
    return Blocks(weight.type, weight.rows[rows], weight.depth) if isinstance(weight, Blocks) else weight[rows]


def dense(weight: Weight, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (weight.dense() if isinstance(weight, Blocks) else weight.detach()).to(dtype)


def shape_of(weight: Weight) -> tuple[int, int]:
    """Return (N, K) of a linear weight."""
    return (len(weight.rows), weight.depth) if isinstance(weight, Blocks) else (weight.shape[0], weight.shape[1])
