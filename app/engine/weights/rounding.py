"""Round a model's linear weights at load time, by ggml's own rules: another model."""

from collections.abc import Iterator, Mapping

import gguf

from app.config import WeightsAs
from app.engine.weights.blocks import EMBEDDING, Blocks, Weight, Weights, by_rows, dense

GROUP = 32  # numbers of a block of Q8_0 and Q4_0
BITS = {"float32": 32.0, "q8_0": 8.5, "q4_0": 4.5}  # of a weight, with its part of the block's scale


def weights_as(weights: Weights, wanted: WeightsAs) -> Weights:
    return weights if wanted == "stored" else _Rounded(weights, wanted)


def round_linear(weight: Weight, wanted: WeightsAs) -> Weight:
    """Round a linear layer's weight (N, K) by gguf's own quantiser.

    A row that is no whole number of blocks stays float32.
    """
    if wanted == "stored" or isinstance(weight, Blocks) and weight.type == wanted.upper():
        return weight
    whole = dense(weight)
    if wanted == "float32" or whole.shape[1] % GROUP:
        return whole
    kind = wanted.upper()
    return Blocks(kind, by_rows(gguf.quants.quantize, whole.numpy(), kind), whole.shape[1])


def linear_bytes(weights: Weights, wanted: WeightsAs) -> float:
    """Return the bytes of the linear weights in a form."""
    found = 0.0
    for name in weights:
        weight = weights[name]
        if name == EMBEDDING or not isinstance(weight, Blocks) and weight.ndim != 2:
            continue
        count = len(weight.rows) * weight.depth if isinstance(weight, Blocks) else weight.numel()
        stored = weight.rows.nbytes if isinstance(weight, Blocks) else weight.nbytes
        found += stored if wanted == "stored" else count * BITS[wanted] / 8
    return found


class _Rounded(Mapping[str, Weight]):
    def __init__(self, weights: Weights, wanted: WeightsAs) -> None:
        self._weights, self._wanted = weights, wanted

    def __getitem__(self, name: str) -> Weight:
        weight = self._weights[name]
        is_linear = name != EMBEDDING and (isinstance(weight, Blocks) or weight.ndim == 2)
        if is_linear:
            return round_linear(weight, self._wanted)
        return dense(weight) if self._wanted == "float32" else weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
