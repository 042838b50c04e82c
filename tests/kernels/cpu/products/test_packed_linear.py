import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kernels.cpu.products import packed_linear as module
from kernels.cpu.products.packed_linear import PackedLinear, is_exact

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
        torch.testing.assert_close(packed(x), F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)


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


def test_a_prompt_has_the_same_bits_in_any_chunks_and_threads():
    packed, _, _ = layer(1536, 576, with_bias=True)
    x = rows_of(260, 576)
    before = torch.get_num_threads()
    whole = packed(x)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for size in (1, 5, 33, 130, 260):
                assert torch.equal(torch.cat([packed(part) for part in x.split(size)]), whole)
    finally:
        torch.set_num_threads(before)


def test_no_rows_give_no_rows():
    packed, _, _ = layer(24, 16)
    assert packed(rows_of(3, 16)[:0]).shape == (0, 24)


@pytest.mark.parametrize("x", [torch.zeros(2, 15), torch.zeros(2, 16, dtype=torch.float64)])
def test_rows_that_do_not_fit_are_refused(x):
    packed, _, _ = layer(24, 16)
    with pytest.raises(ValueError, match="do not fit"):
        packed(x)


def test_the_self_check_finds_a_product_that_depends_on_rows(monkeypatch):
    assert is_exact()
    forward = PackedLinear.forward
    monkeypatch.setattr(module.PackedLinear, "forward", lambda self, x: forward(self, x) * (1 + 1e-6 * len(x)))
    assert not is_exact()
