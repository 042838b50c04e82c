"""Test the norm; run by ../test_device.py, in a process of its own."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from kernels.layers.rms_norm import MAX_COLUMNS, add_rms_norm, add_rms_norm_reference
from tests.kernels.device.places import DEVICE, DTYPES, TOLERANCE

EPSILON = 1e-3  # large enough to be missed


def inputs(rows, columns, dtype):
    random = torch.Generator().manual_seed(rows * columns)
    x, residual = (torch.randn(rows, columns, generator=random).to(dtype).to(DEVICE) for _ in range(2))
    weight = (torch.rand(columns, generator=random) + 0.5).to(dtype).to(DEVICE)
    return x, residual * 0.1, weight


def both(x, residual, weight):
    """Return ((residual, out) of the kernel, of the reference). Nothing is written behind the last
    rows."""
    results = []
    rows, columns = residual.shape
    for run in (add_rms_norm, add_rms_norm_reference):
        changed, out = residual.new_full((2, rows + 1, columns), torch.nan)
        changed[:rows] = residual
        run(x, changed[:rows], weight, EPSILON, out[:rows])
        assert changed[rows].isnan().all() and out[rows].isnan().all()
        results.append((changed[:rows], out[:rows]))
    return results


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 33), (3, 64), (2, 2880), (1, MAX_COLUMNS)])
@pytest.mark.parametrize("adds", [True, False])
def test_rows_are_added_and_normed(adds, rows, columns, dtype):
    x, residual, weight = inputs(rows, columns, dtype)
    (changed, out), (expected_changed, expected_out) = both(x if adds else None, residual, weight)
    assert torch.equal(changed, expected_changed)
    assert torch.equal(changed, residual) != adds
    torch.testing.assert_close(out, expected_out, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_are_those_of_llamas_module(dtype):
    x, residual, weight = inputs(9, 500, dtype)
    norm = LlamaRMSNorm(500, EPSILON).to(dtype).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(weight)
        expected = norm(residual + x)
    (_, found), (_, reference) = both(x, residual, weight)
    assert torch.equal(reference, expected)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    if dtype != torch.float32:  # rounded elsewhere, every third value would differ
        assert (found == expected).float().mean() > 0.99


def test_the_result_may_replace_the_added_row():
    x, residual, weight = inputs(4, 100, torch.float32)
    (_, out), _ = both(x, residual, weight)
    add_rms_norm(x, residual, weight, EPSILON, x)
    assert torch.equal(x, out)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone(dtype):
    x, residual, weight = inputs(6, 300, dtype)
    (_, together), _ = both(x, residual, weight)
    for row in range(6):
        (_, alone), _ = both(x[row : row + 1], residual[row : row + 1], weight)
        assert torch.equal(alone[0], together[row])


def test_no_rows_are_no_work():
    x, residual, weight = inputs(3, 40, torch.float32)
    add_rms_norm(x[:0], residual[:0], weight, EPSILON, x[:0])


def test_arguments_that_do_not_fit_are_refused():
    x, residual, weight = inputs(4, 64, torch.float32)
    wide = torch.zeros(1, MAX_COLUMNS + 1, device=DEVICE)
    for arguments in (
        (x[:3], residual, weight, EPSILON, x),
        (x, residual, weight, EPSILON, x[:3]),
        (x, residual, weight[:63], EPSILON, x),
        (x, residual.half(), weight, EPSILON, x),
        (x, residual, weight.half(), EPSILON, x),
        (x[:, ::2], residual[:, ::2], weight[:32], EPSILON, x[:, ::2]),
        (x, residual, weight.repeat(2)[::2], EPSILON, x),
        (None, wide, wide[0], EPSILON, wide),
    ):
        with pytest.raises(ValueError):
            add_rms_norm(*arguments)
