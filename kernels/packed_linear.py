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


def can_pack() -> bool:
    """True where the packed operator exists and agrees with the reference."""
    try:
        weight, x = torch.randn(32, 16), torch.randn(3, 16)
        packed = PackedLinear(weight, None)(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.allclose(packed, packed_linear_reference(x, weight, None), atol=1e-4)
