"""Test the products of the device's forward."""

import pytest
import torch

layers = pytest.importorskip("app.engine.gpu.layers", reason="Triton is not made for this machine")


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


def test_a_bias_is_added() -> None:
    weight, bias = torch.eye(2, dtype=torch.float16), torch.ones(2, dtype=torch.float16)
    assert layers.float32_linear(weight, weight, bias).tolist() == [[2.0, 1.0], [1.0, 2.0]]
