"""Test the gate; run by ../test_device.py, in a process of its own."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from kernels.layers.gated_silu import gated_silu, gated_silu_reference
from tests.kernels.device.places import DEVICE, DTYPES, TOLERANCE


def inputs(rows, columns, dtype):
    random = torch.Generator().manual_seed(rows * columns)
    return (2 * torch.randn(rows, 2 * columns, generator=random)).to(dtype).to(DEVICE)


def both(gate_up):
    """Return (kernel's, reference's). Nothing is written behind the last row."""
    results = []
    rows, columns = len(gate_up), gate_up.shape[1] // 2
    for run in (gated_silu, gated_silu_reference):
        out = gate_up.new_full((rows + 1, columns), torch.nan)
        run(gate_up, out[:rows])
        assert out[rows].isnan().all()
        results.append(out[:rows])
    return results


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 33), (3, 1024), (2, 2880)])
def test_every_value_is_gated(rows, columns, dtype):
    gate_up = inputs(rows, columns, dtype)
    before = gate_up.clone()
    found, expected = both(gate_up)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(gate_up, before)
    if dtype != torch.float32 and rows * columns > 1000:  # rounded elsewhere, every third value would differ
        assert (found == expected).float().mean() > 0.99


def test_gates_are_those_of_llamas_module():
    mlp = LlamaMLP(LlamaConfig(hidden_size=48, intermediate_size=80, num_attention_heads=4)).to(DEVICE)
    mlp.down_proj = torch.nn.Identity()
    x = inputs(5, 24, torch.float32)
    with torch.no_grad():
        expected = mlp(x)
        found, _ = both(torch.cat([mlp.gate_proj(x), mlp.up_proj(x)], -1))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:overflow")  # of numpy, in the interpreter: e^100 is infinite in float32, as it may
def test_gates_of_any_size():
    gate_up = torch.tensor([[-1e4, -100.0, -20.0, 0.0, 20.0, 1e4] + [2.0] * 6], device=DEVICE)
    found, expected = both(gate_up)
    torch.testing.assert_close(found, expected)
    assert found.isfinite().all()


def test_no_rows_are_no_work():
    both(inputs(3, 8, torch.float32)[:0])


def test_arguments_that_do_not_fit_are_refused():
    gate_up = inputs(4, 64, torch.float32)
    out = torch.empty(4, 64, device=DEVICE)
    for arguments in (
        (gate_up[:, :100], out),
        (gate_up[:3], out),
        (gate_up.half(), out),
        (gate_up[:, ::2], out[:, :32].contiguous()),
        (gate_up, out.repeat(1, 2)[:, ::2]),
    ):
        with pytest.raises(ValueError):
            gated_silu(*arguments)
