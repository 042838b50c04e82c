"""Compute the noise that fixes a sampled text before any drafting.

    G(seed, choice, position, token) = -log(-log u)
    u = (h >> 9 + 1/2) / 2^23

h is a counter-based 32-bit hash: two rounds of the murmur3 finaliser over the token, keyed by seed, choice and
position. The integers are the same in torch, numpy and plain Python; the logarithms agree within a few ulps.
"""

import torch

MASK = 0xFFFFFFFF
GOLDEN = 0x9E3779B9


def gumbel_noise_reference(tokens: torch.Tensor, seed: int, choice: int, position: int) -> torch.Tensor:
    """Tokens (n,) int64 -> noise (n,) float32: the specification."""
    return gumbel(noise_bits(tokens, seed, choice, position))


def noise_bits(tokens: torch.Tensor, seed: int, choice: int, position: int) -> torch.Tensor:
    """Hash tokens (n,) int64 to 32 uniform bits each."""
    low, high = noise_key(seed, choice, position)
    h = _mix(tokens * GOLDEN + low & MASK)
    return _mix((h ^ high) + GOLDEN & MASK)


def gumbel(bits: torch.Tensor) -> torch.Tensor:
    """Turn 32 uniform bits each into noise, (n,) int64 to float32."""
    u = ((bits >> 9).to(torch.float32) + 0.5) * 2.0**-23
    return -torch.log(-torch.log(u))


def noise_key(seed: int, choice: int, position: int) -> tuple[int, int]:
    """Return two 32-bit words that depend on every bit of seed (64 bits), choice and position (32 bits each)."""
    low, high = GOLDEN, 0x85EBCA6B
    for word in (seed & MASK, seed >> 32 & MASK, choice & MASK, position & MASK):
        low = _mix_int(low ^ word)
        high = _mix_int(high + low + word & MASK)
    return low, high


def _mix(h: torch.Tensor) -> torch.Tensor:
    h = (h ^ h >> 16) * 0x85EBCA6B & MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & MASK
    return h ^ h >> 16


def _mix_int(h: int) -> int:
    h = (h ^ h >> 16) * 0x85EBCA6B & MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & MASK
    return h ^ h >> 16
