"""y = x W^T + b with W packed once for oneDNN: faster on few rows, and a row's bits do not depend on its neighbours.

torch keeps the operator to itself (its compiler uses it), so `can_pack` probes for it; without it, or off the
CPU, `F.linear` is the reference and the fallback. BATCH_HINT is the number of rows the packing is laid out for:
with 8 every row came out bit-identical alone and among up to 512 others, with 1 it did not.
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH_HINT = 8


def packed_linear_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x: (..., K), weight: (N, K), bias: (N,) or None -> (..., N). This is the specification."""
    return F.linear(x, weight, bias)


class PackedLinear(nn.Module):
    """A linear layer that runs on a packed copy of its weight; (..., K) -> (..., N), float32, CPU."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), BATCH_HINT)
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        out = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return out.view(*x.shape[:-1], self.out_features)


class PackedSiblings:
    """Linear layers that read the same input, as one product; `members` take the places of the single layers.

    The first member that sees an input computes all of them; the others find their columns ready. They know the input
    by identity, so layers that turn out not to share it are still right, only slower.
    """

    def __init__(self, weights: list[torch.Tensor], biases: list[torch.Tensor | None]) -> None:
        whole = [bias for bias in biases if bias is not None]
        self._linear = PackedLinear(torch.cat(weights), torch.cat(whole) if len(whole) == len(biases) else None)
        self._seen: tuple[torch.Tensor, torch.Tensor] | None = None
        ends = torch.tensor([len(weight) for weight in weights]).cumsum(0).tolist()
        self.members = [PackedSibling(self, end - len(w), end) for w, end in zip(weights, ends, strict=True)]

    def columns(self, x: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """x: (..., K) -> columns `start ... end - 1` of all layers' outputs, (..., end - start)."""
        if self._seen is None or self._seen[0] is not x:
            self._seen = (x, self._linear(x))
        out = self._seen[1][..., start:end]
        if end == self._linear.out_features:
            self._seen = None  # the last one reads last: do not hold the memory until the next step
        return out


class PackedSibling(nn.Module):
    """One of the layers of `PackedSiblings`; (..., K) -> (..., N)."""

    def __init__(self, family: PackedSiblings, start: int, end: int) -> None:
        super().__init__()
        self._family, self._start, self._end = family, start, end

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._family.columns(x, self._start, self._end)


def can_pack() -> bool:
    """True where the packed operator exists and agrees with the reference."""
    try:
        weight, x = torch.randn(32, 16), torch.randn(3, 16)
        packed = PackedLinear(weight, None)(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.allclose(packed, packed_linear_reference(x, weight, None), atol=1e-4)
