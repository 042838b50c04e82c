"""Test the fixed product; run by ../test_device.py, in a process of its own."""

import dataclasses

import pytest
import torch

from kernels.layers.fixed_linear import BITS16, FLOAT32, fixed_linear, fixed_linear_reference
from tests.kernels.device.places import DEVICE, DTYPES, INTERPRETED, TOLERANCE


def inputs(rows, depth, columns, dtype):
    """Return x, weight and bias; products are of order one."""
    random = torch.Generator().manual_seed(rows + depth + columns)
    x = torch.randn(rows, depth, generator=random)
    weight, bias = torch.randn(columns, depth, generator=random) * depth**-0.5, torch.randn(columns, generator=random)
    return [one.to(dtype).to(DEVICE) for one in (x, weight, bias)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(1, 1, 1), (64, 128, 64), (130, 100, 70), (2, 257, 65)],
)
@pytest.mark.parametrize("biased", [False, True])
def test_the_product_is_the_references(biased, rows, depth, columns, dtype):
    x, weight, bias = inputs(rows, depth, columns, dtype)
    arguments = (x, weight, bias if biased else None)
    found, expected = fixed_linear(*arguments), fixed_linear_reference(*arguments)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("depth", "columns"), [(300, 70), (256, 64)])
def test_a_row_has_the_same_bits_among_any_number(depth, columns, dtype):
    x, weight, bias = inputs(150, depth, columns, dtype)
    together = fixed_linear(x, weight, bias)
    for rows in (1, 2, 16, 17, 63, 64, 65, 128, 129):
        assert torch.equal(fixed_linear(x[:rows], weight, bias), together[:rows])
    assert torch.equal(fixed_linear(x[64:], weight, bias), together[64:])
    assert torch.equal(fixed_linear(x[128:], weight, bias), together[128:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_depend_on_each_other(dtype):
    x, weight, bias = inputs(70, 200, 40, dtype)
    together = fixed_linear(x, weight, bias)
    for row in (0, 13, 63, 69):
        others = torch.full_like(x, torch.nan)
        others[row] = x[row]
        assert torch.equal(fixed_linear(others, weight, bias)[row], together[row])


@pytest.mark.skipif(INTERPRETED, reason="numpy rounds a row of a product by its place among the rows")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone(dtype):
    x, weight, bias = inputs(130, 1000, 200, dtype)
    together = fixed_linear(x, weight, bias)
    for row in range(130):
        assert torch.equal(fixed_linear(x[row : row + 1], weight, bias)[0], together[row])


@pytest.mark.parametrize("tiling", [BITS16, FLOAT32], ids=["bits16", "float32"])
def test_every_tiling_gives_the_product(tiling):
    assert tiling.rows == 64  # one instruction of sm_90
    x, weight, bias = inputs(5, 150, 70, torch.float32)
    small = dataclasses.replace(tiling, columns=16, depth=16, num_stages=2)
    torch.testing.assert_close(fixed_linear(x, weight, bias, small), fixed_linear_reference(x, weight, bias))


def test_a_result_of_more_bits_is_not_rounded_to_fewer():
    x, weight, bias = inputs(5, 150, 70, torch.float16)
    found = fixed_linear(x, weight, bias, out_dtype=torch.float32)
    expected = fixed_linear_reference(x, weight, bias, torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.equal(found, found.half().float())


def test_no_rows_are_no_work():
    x, weight, bias = inputs(3, 40, 20, torch.float32)
    assert fixed_linear(x[:0], weight, bias).shape == (0, 20)


def test_arguments_that_do_not_fit_are_refused():
    x, weight, bias = inputs(4, 64, 32, torch.float32)
    for arguments in (
        (x[:, :32].contiguous(), weight),
        (x[:, ::2], weight[:, ::2].contiguous()),
        (x, weight.t().contiguous().t()),
        (x.half(), weight),
        (x, weight, bias[:31]),
        (x, weight, bias.half()),
        (x, weight, bias.repeat(2)[::2]),
    ):
        with pytest.raises(ValueError):
            fixed_linear(*arguments)
