"""Multiply by a packed weight, with a row's bits independent of its neighbours.

    y = x W^T + b

Each output is one chain of fused multiply-adds in the order of k.
"""

from functools import partial

import torch
from torch import nn

from kernels.cpu.products.linear import linear
from kernels.cpu.products.pack import pack, pack_bias
from kernels.cpu.simd import BYTES, LANES
from kernels.cpu.threads import take, team, words
from kernels.jit import entry

SHARED = 2**23  # multiply-adds from which other threads are woken: they come too late for fewer


@entry
def packed_linear(
    rows: int, x: int, w: int, depth: int, bias: int, blocks: int, piece: int, out: int, counter: int
) -> None:
    while True:
        first = take(counter, 0, piece)
        if first >= blocks:
            return
        linear(rows, x, 4 * depth, w, depth, bias, first, min(first + piece, blocks), out, blocks * BYTES)


class PackedLinear(nn.Module):
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._weight = torch.from_numpy(pack(weight.detach().numpy()))
        self._bias = None if bias is None else torch.from_numpy(pack_bias(bias.detach().numpy()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x (..., K) float32 -> (..., N) float32. Raises ValueError for rows of another length or type."""
        if x.shape[-1] != self.in_features or x.dtype != torch.float32 or x.device.type != "cpu":
            raise ValueError(
                f"{x.shape[-1]} columns of {x.dtype} on {x.device} do not fit a float32 {self.in_features}"
            )
        rows, blocks = x.reshape(-1, self.in_features).contiguous(), len(self._weight)
        out, counter = torch.empty(len(rows), blocks * LANES), words(1)
        threads = torch.get_num_threads() if rows.numel() * self.out_features >= SHARED else 1
        share = partial(
            packed_linear, len(rows), rows.data_ptr(), self._weight.data_ptr(), self.in_features,
            0 if self._bias is None else self._bias.data_ptr(),
            blocks, max(2, blocks // (16 * threads) * 2), out.data_ptr(), counter.ctypes.data,
        )  # fmt: skip
        if threads == 1:
            share()
        else:
            team(threads).run(lambda _: share())
        return out[:, : self.out_features].view(*x.shape[:-1], self.out_features)


def is_exact() -> bool:
    """Compare a few random products of rows alone and in a batch."""
    for depth in (16, 576, 1536):
        x, layer = torch.randn(50, depth), PackedLinear(torch.randn(576, depth), torch.randn(576))
        alone = torch.cat([layer(x[i : i + 1]) for i in range(len(x))])
        if any(not torch.equal(layer(x[:rows]), alone[:rows]) for rows in (2, 3, 7, 8, 33, 50)):
            return False
    return True
