import pytest
import torch
from torch import nn

from kernels.layers.packed_linear import PackedLinear, PackedSiblings, can_pack, packed_linear_reference

pytestmark = pytest.mark.skipif(not can_pack(), reason="this torch has no packed linear operator")
SHAPES = [(1, 1), (3, 5), (7, 16), (16, 17), (64, 48), (192, 576), (1000, 64)]  # (N, K)
ROWS = [1, 2, 3, 7, 8, 9, 31, 64, 100]


def layer(n: int, k: int, with_bias: bool = False) -> tuple[PackedLinear, torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(n * 1000 + k)
    weight = torch.randn(n, k, generator=generator) / k**0.5
    bias = torch.randn(n, generator=generator) if with_bias else None
    return PackedLinear(weight, bias), weight, bias


def rows_of(count: int, k: int) -> torch.Tensor:
    return torch.randn(count, k, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_packed_equals_the_reference(n, k, with_bias):
    packed, weight, bias = layer(n, k, with_bias)
    for count in ROWS:
        x = rows_of(count, k)
        torch.testing.assert_close(packed(x), packed_linear_reference(x, weight, bias), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n", "k"), [*SHAPES, (1536, 576), (576, 1536), (4096, 576)])
def test_a_row_has_the_same_bits_alone_and_among_others(n, k):
    packed, _, _ = layer(n, k)
    x = rows_of(100, k)
    alone = torch.cat([packed(x[i : i + 1]) for i in range(100)])
    for count in ROWS:
        for first in range(0, 101 - count, max(1, (101 - count) // 3)):
            together = packed(x[first : first + count])
            assert torch.equal(together, alone[first : first + count]), f"{count} rows from {first}"


def test_leading_dimensions_and_strides_do_not_matter():
    packed, weight, bias = layer(24, 16, with_bias=True)
    x = rows_of(30, 32)[:, ::2]
    assert torch.equal(packed(x.view(2, 3, 5, 16)).view(30, 24), packed(x.contiguous()))
    assert packed(x.view(2, 3, 5, 16)).shape == (2, 3, 5, 24)


def test_the_packed_weight_is_a_copy():
    linear = nn.Linear(16, 8)
    with torch.no_grad():
        packed = PackedLinear(linear.weight, linear.bias)
        x = rows_of(2, 16)
        before = packed(x)
        linear.weight.zero_()
        assert torch.equal(packed(x), before)


SIZES = [(64, 16, 16), (5, 7), (576, 192, 192), (1536, 1536)]  # N of each sibling


def siblings(sizes: tuple[int, ...], k: int = 48, with_bias: bool = True):
    generator = torch.Generator().manual_seed(sum(sizes))
    weights = [torch.randn(n, k, generator=generator) / k**0.5 for n in sizes]
    biases = [torch.randn(n, generator=generator) if with_bias else None for n in sizes]
    return PackedSiblings(weights, biases), weights, biases


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_siblings_equal_the_reference_in_any_order_and_on_any_input(sizes, with_bias):
    family, weights, biases = siblings(sizes, with_bias=with_bias)
    one, other = rows_of(3, 48).view(1, 3, 48), rows_of(5, 48)
    calls = [(i, x) for x in (one, other, one) for i in range(len(sizes))]
    for order in (calls, calls[::-1], calls[1:] + calls[:1]):
        for i, x in order:
            expected = packed_linear_reference(x, weights[i], biases[i])
            torch.testing.assert_close(family.members[i](x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_row_of_siblings_has_the_same_bits_alone_and_among_others(sizes):
    family, _, _ = siblings(sizes)
    x = rows_of(100, 48)
    alone = [torch.cat([member(x[i : i + 1]) for i in range(100)]) for member in family.members]
    for count in ROWS:
        together = x[:count].clone()
        for member, expected in zip(family.members, alone, strict=True):
            assert torch.equal(member(together), expected[:count])


def test_siblings_hold_no_result_when_all_have_read():
    family, _, _ = siblings((5, 7))
    x = rows_of(2, 48)
    for member in family.members:
        member(x)
    assert family._seen is None
