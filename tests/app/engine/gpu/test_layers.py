"""Test the products of the device's forward."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

layers = pytest.importorskip("app.engine.gpu.layers", reason="Triton is not made for this machine")
from app.engine.gpu.input_batch import AttentionPart  # noqa: E402
from kernels.attention.ragged_attention import VERIFY, Batch  # noqa: E402
from kernels.attention.work_list import Work  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_close_logits_are_no_ties(dtype: torch.dtype) -> None:
    """Logits between 16 and 32 are told apart by less than the weights' dtype can hold."""
    x = torch.full((1, 64), 0.5, dtype=dtype)
    weight = torch.full((2, 64), 0.5, dtype=dtype)
    weight[1, 0] += 0.0078125
    logits = layers.Method.of(dtype, 1, is_exact=False).head(x, weight, None)
    assert logits.dtype == torch.float32
    assert logits[0, 1] - logits[0, 0] == 0.00390625
    assert logits.to(dtype)[0, 0] == logits.to(dtype)[0, 1]


@pytest.mark.parametrize("is_exact", [False, True])
def test_attention_joins_products_and_sums_only_where_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, is_exact: bool
) -> None:
    found: list[bool] = []

    class Kernel:
        def __getitem__(self, grid: object) -> Any:
            return lambda *_, enable_fp_fusion, **__: found.append(enable_fp_fusion)

    monkeypatch.setattr("kernels.attention.ragged_attention.ragged_attention_kernel", Kernel())
    monkeypatch.setattr(layers, "rotary_store", lambda *_: None)
    ints = torch.zeros(1, dtype=torch.int32)
    work = Work(torch.zeros(1, 3, dtype=torch.int32), ints, ints, ints, 0, None)
    part = AttentionPart(Batch(ints, ints, ints, ints[None], None, None), work, VERIFY)
    weights: Any = SimpleNamespace(num_heads=1, head_dim=16, scale=1.0, cos=None, sin=None, epsilon=0.0)
    layer: Any = SimpleNamespace(qkv=None, q_norm=None, k_norm=None, window=0)
    rows: Any = SimpleNamespace(positions=None, slots=None, parts=[part])
    pages = torch.zeros(1, 16, 1, 16)
    monkeypatch.setattr(layers, "_product", lambda method, x, linear: torch.zeros(1, 48))
    for given in ({}, {"fuses": True}):
        method = layers.Method.of(torch.float32, 1, is_exact=is_exact, **given)
        layers._attend(weights, layer, pages, pages, rows, method, torch.zeros(1, 16))
    assert found == [False, True]


def test_a_bias_is_added() -> None:
    weight, bias = torch.eye(2, dtype=torch.float16), torch.ones(2, dtype=torch.float16)
    assert layers.float32_linear(weight, weight, bias).tolist() == [[2.0, 1.0], [1.0, 2.0]]
