"""Test the noise of many rows; run by ../test_device.py, in a process of its own."""

import pytest
import torch

from kernels.sampling.gumbel_noise import gumbel, noise_bits
from kernels.sampling.gumbel_noise_batch import gumbel_noise_batch
from tests.kernels.device.places import DEVICE

PLACES = [(0, 0, 0), (2**63 - 1, 2**32 - 1, 8191), (12345678901234, 3, 2**32 - 1), (7, 1, 2**31), (8, 0, 7)]


@pytest.mark.parametrize("vocab_size", [1, 61, 2049, 5000])
def test_bits_equal_the_references_and_noise_nearly(vocab_size):
    seeds, choices, positions = (torch.tensor(column, device=DEVICE) for column in zip(*PLACES, strict=True))
    bits, noise = gumbel_noise_batch(seeds, choices, positions, vocab_size)
    for i, place in enumerate(PLACES):
        expected = noise_bits(torch.arange(vocab_size), *place)
        assert torch.equal(bits[i].cpu(), expected)
        torch.testing.assert_close(noise[i].cpu(), gumbel(expected), rtol=1e-5, atol=1e-5)


def test_known_integers():
    """The same values as in test_gumbel_noise.py: part of the interface."""
    zero = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    bits, _ = gumbel_noise_batch(zero, zero, zero, 49152)
    assert bits[0, [0, 1, 49151]].tolist() == [495409886, 579862018, 1248914478]
