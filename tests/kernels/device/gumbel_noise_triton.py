"""Test the noise inside a kernel; run by ../test_device.py, in a process of its own."""

import pytest
import torch
import triton
import triton.language as tl

from kernels.sampling import gumbel_noise_triton as on_device
from kernels.sampling.gumbel_noise import gumbel, noise_bits
from tests.kernels.device.places import DEVICE

PLACES = [(0, 0, 0), (2**63 - 1, 2**32 - 1, 8191), (12345678901234, 3, 2**32 - 1), (7, 1, 2**31), (8, 0, 7)]
BLOCK = 2048
noise_key, noise_bits_of, gumbel_of = on_device.noise_key, on_device.noise_bits, on_device.gumbel


@triton.jit
def noise_kernel(
    places_ptr,  # (N, 3) int64
    bits_ptr,  # (N, V) int32, the bits as they are
    noise_ptr,  # (N, V) float32
    V,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = places_ptr + 3 * row
    low, high = noise_key(tl.load(place), tl.load(place + 1), tl.load(place + 2))
    bits = noise_bits_of(tokens, low, high)
    tl.store(bits_ptr + row * V + tokens, bits.to(tl.int32, bitcast=True), mask=tokens < V)
    tl.store(noise_ptr + row * V + tokens, gumbel_of(bits), mask=tokens < V)


def noise_at(places, vocab_size):
    """Return ((N, V) int64 that hold 32 bits, (N, V) float32 noise) of every token at each place."""
    bits = torch.empty(len(places), vocab_size, dtype=torch.int32, device=DEVICE)
    noise = torch.empty_like(bits, dtype=torch.float32)
    grid = (len(places), triton.cdiv(vocab_size, BLOCK))
    noise_kernel[grid](torch.tensor(places, device=DEVICE), bits, noise, vocab_size, BLOCK=BLOCK)
    return bits.cpu().to(torch.int64) & 0xFFFFFFFF, noise.cpu()


@pytest.mark.parametrize("vocab_size", [1, 61, 2049, 5000])
def test_bits_equal_the_references_and_noise_nearly(vocab_size):
    bits, noise = noise_at(PLACES, vocab_size)
    for i, place in enumerate(PLACES):
        expected = noise_bits(torch.arange(vocab_size), *place)
        assert torch.equal(bits[i], expected)
        torch.testing.assert_close(noise[i], gumbel(expected), rtol=1e-5, atol=1e-5)


def test_known_integers():
    """The same values as in test_gumbel_noise.py: part of the interface."""
    bits, _ = noise_at([(0, 0, 0)], 49152)
    assert bits[0, [0, 1, 49151]].tolist() == [495409886, 579862018, 1248914478]
