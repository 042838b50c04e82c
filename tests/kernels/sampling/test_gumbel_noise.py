import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling.gumbel_noise import MASK, gumbel, gumbel_noise_reference, noise_bits

WORDS = st.integers(0, MASK)
SEEDS = st.integers(0, 2**63 - 1)
TOKENS = torch.arange(2**16)


def numpy_bits(tokens: np.ndarray, seed: int, choice: int, position: int) -> np.ndarray:
    """Compute the hash once more, in wrapping 32-bit arithmetic."""
    low, high = np.array([0x9E3779B9], np.uint32), np.array([0x85EBCA6B], np.uint32)
    for word in (seed, seed >> 32, choice, position):
        word32 = np.array([word & MASK]).astype(np.uint32)
        low = numpy_mix(low ^ word32)
        high = numpy_mix(high + low + word32)
    h = numpy_mix(tokens.astype(np.uint32) * np.uint32(0x9E3779B9) + low)
    return numpy_mix((h ^ high) + np.uint32(0x9E3779B9))


def numpy_mix(h: np.ndarray) -> np.ndarray:
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(tokens=st.lists(WORDS, min_size=1, max_size=8), seed=SEEDS, choice=WORDS, position=WORDS)
def test_integers_equal_32_bit_arithmetic(tokens, seed, choice, position):
    expected = numpy_bits(np.array(tokens), seed, choice, position)
    assert noise_bits(torch.tensor(tokens), seed, choice, position).tolist() == expected.tolist()


def test_noise_is_that_of_known_integers():
    """Texts of a seed must not change with a release: these values are part of the interface."""
    assert noise_bits(torch.tensor([0, 1, 49151]), 0, 0, 0).tolist() == [495409886, 579862018, 1248914478]
    assert noise_bits(torch.tensor([7]), 2**63 - 1, 1, 8191).tolist() == [4079827607]


def test_noise_is_finite_at_both_ends_of_u():
    noise = gumbel(torch.tensor([0, MASK]))
    assert noise.isfinite().all()
    assert noise.tolist() == pytest.approx([-math.log(24 * math.log(2)), 24 * math.log(2)], rel=1e-6)


def test_noise_agrees_with_double_precision():
    bits = noise_bits(TOKENS, 3, 0, 17)
    u = ((bits >> 9).double() + 0.5) * 2.0**-23
    exact = -torch.log(-torch.log(u))
    assert torch.allclose(gumbel(bits).double(), exact, rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 0), (0, 1), (12345, 678), (2**62 + 1, 8000)])
def test_u_is_uniform_and_the_noise_gumbel(seed, position):
    bits = noise_bits(TOKENS, seed, 0, position)
    assert chi_square(torch.bincount(bits >> 24, minlength=256)) < 255 + 5 * math.sqrt(2 * 255)
    assert chi_square(torch.bincount(bits >> 9 & 255, minlength=256)) < 255 + 5 * math.sqrt(2 * 255)
    noise = gumbel(bits).double()
    assert noise.mean().item() == pytest.approx(0.5772, abs=5 * math.pi / math.sqrt(6 * len(TOKENS)))
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.05)


@pytest.mark.parametrize(
    ("left", "right"),
    [((0, 0, 5), (0, 0, 6)), ((0, 0, 5), (1, 0, 5)), ((0, 0, 5), (0, 1, 5)), ((7, 0, 8), (8, 0, 7))],
)
def test_neighbouring_keys_are_independent(left, right):
    pair = torch.stack([gumbel_noise_reference(TOKENS, *left), gumbel_noise_reference(TOKENS, *right)])
    assert abs(torch.corrcoef(pair)[0, 1].item()) < 5 / math.sqrt(len(TOKENS))
    # ... and not the same noise a few tokens further on either
    for shift in range(1, 5):
        moved = torch.stack([pair[0, shift:], pair[1, :-shift]])
        assert abs(torch.corrcoef(moved)[0, 1].item()) < 5 / math.sqrt(len(TOKENS))


@pytest.mark.parametrize("bit", range(63))
def test_every_bit_of_the_seed_matters(bit):
    assert flipped_share((0, 0, 9), (1 << bit, 0, 9)) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("bit", range(32))
def test_every_bit_of_choice_and_position_matters(bit):
    assert flipped_share((5, 0, 0), (5, 1 << bit, 0)) == pytest.approx(0.5, abs=0.01)
    assert flipped_share((5, 0, 0), (5, 0, 1 << bit)) == pytest.approx(0.5, abs=0.01)


def chi_square(counts: torch.Tensor) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def flipped_share(left: tuple[int, int, int], right: tuple[int, int, int]) -> float:
    """Return the share of the bits of 4096 tokens that differ between two keys."""
    tokens = TOKENS[:4096]
    differ = noise_bits(tokens, *left) ^ noise_bits(tokens, *right)
    return sum(int((differ >> i & 1).sum()) for i in range(32)) / (32 * len(tokens))
