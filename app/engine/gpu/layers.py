"""Run one packed forward as a sequence of launches that shapes alone determine; nothing is read back.

The same launches run eagerly, in a CUDA graph, and in Triton's interpreter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional as F

from app.engine.gpu.input_batch import Cut, RowTensors
from app.engine.gpu.weights import Layer, Linear, Weights
from kernels.attention.ragged_attention import (
    FLOAT32,
    PREFILL,
    VERIFY,
    ragged_attention,
)
from kernels.layers.fixed_linear import fixed_linear
from kernels.layers.gated_silu import gated_silu
from kernels.layers.rms_norm import add_rms_norm
from kernels.layers.rotary_store import rotary_store

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Pages:
    keys: torch.Tensor  # (L, P, S, HK, D)
    values: torch.Tensor  # (L, P, S, HK, D)


@dataclass(frozen=True, slots=True)
class Method:
    """The tiling of products and attention; one tiling for every batch gives every row the same bits."""

    product: Product
    head: Product  # of the last product, whose result is float32: 16 bits would make ties of close logits
    cut: Cut
    fuses: bool = False  # products and sums of attention's scores: then two loops of its kernel round differently

    @classmethod
    def of(cls, dtype: torch.dtype, fold: int, *, is_exact: bool, fuses: bool = False) -> "Method":
        """`fold`: query heads of a key head; `is_exact`: the same tiles for any number of rows; `fuses`: for
        benchmarks.
        """
        verify = FLOAT32 if dtype == torch.float32 else VERIFY
        if is_exact:
            head = partial(fixed_linear, out_dtype=torch.float32)
            return cls(fixed_linear, head, Cut(fold, verify, verify), fuses)
        cut = Cut(fold, verify, FLOAT32 if dtype == torch.float32 else PREFILL)
        return cls(F.linear, float32_linear, cut, fuses)


def forward(weights: Weights, pages: Pages, rows: RowTensors, method: Method) -> torch.Tensor:
    """Write the rows' keys and values, and return the logits (N, V) of the wanted rows, float32."""
    hidden = F.embedding(rows.ids, weights.embedding)  # (T, d)
    update: torch.Tensor | None = None
    for i, layer in enumerate(weights.layers):
        attended = _attend(weights, layer, pages.keys[i], pages.values[i], rows, method, _norm(
            update, hidden, layer.norm1, weights.epsilon
        ))  # fmt: skip
        update = _product(method, attended, layer.out)
        normed = _norm(update, hidden, layer.norm2, weights.epsilon)
        update = _product(method, _gate(_product(method, normed, layer.gate_up)), layer.down)
    if rows.wanted is not None:
        hidden = hidden.index_select(0, rows.wanted)
        update = None if update is None else update.index_select(0, rows.wanted)
    return method.head(_norm(update, hidden, weights.norm, weights.epsilon), weights.head.weight, weights.head.bias)


def float32_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x (M, K) times weight (N, K) as float32 (M, N), not rounded to 16 bits."""
    if x.dtype == torch.float32:
        return F.linear(x, weight, bias)
    if x.is_cuda:
        out = torch.mm(x, weight.t(), out_dtype=torch.float32)
        return out if bias is None else out.add_(bias)
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float())


def _attend(
    weights: Weights,
    layer: Layer,
    keys: torch.Tensor,  # (P, S, HK, D)
    values: torch.Tensor,  # (P, S, HK, D)
    rows: RowTensors,
    method: Method,
    normed: torch.Tensor,  # (T, d)
) -> torch.Tensor:  # (T, H D)
    qkv = _product(method, normed, layer.qkv)
    rotary_store(
        qkv, rows.positions, rows.slots, weights.cos, weights.sin, keys, values,
        weights.num_heads, layer.q_norm, layer.k_norm, weights.epsilon,
    )  # fmt: skip
    q = qkv.view(len(qkv), -1, weights.head_dim)[:, : weights.num_heads]
    out = q.new_zeros(q.shape)  # of rows of no sequence
    for part in rows.parts:
        ragged_attention(
            q, keys, values, part.batch, part.work, weights.scale, layer.window,
            tiling=part.tiling, out=out, fuses=method.fuses,
        )  # fmt: skip
    return out.view(len(qkv), -1)


def _norm(
    update: torch.Tensor | None, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:  # (T, d)
    out = torch.empty_like(hidden)
    add_rms_norm(update, hidden, weight, epsilon, out)
    return out


def _gate(gate_up: torch.Tensor) -> torch.Tensor:
    out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
    gated_silu(gate_up, out)
    return out


def _product(method: Method, x: torch.Tensor, linear: Linear) -> torch.Tensor:
    return method.product(x, linear.weight, linear.bias)
