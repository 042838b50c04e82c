"""Compute the noise of `kernels.sampling.gumbel_noise` inside other kernels.

    h = mix(mix(token * GOLDEN + low) ^ high + GOLDEN)    with (low, high) from (seed, choice, position)
    G = -log(-log((h >> 9 + 1/2) / 2^23))

In wrapping 32-bit integers up to the last line, so bits equal the reference's.
"""

import triton
import triton.language as tl

from kernels.sampling.gumbel_noise import GOLDEN

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch)

_GOLDEN = tl.constexpr(GOLDEN)


@triton.jit
def mix(h):
    """murmur3's finaliser; h: uint32 of any shape."""
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def _absorb(low, high, word):
    low = mix(low ^ word)
    return low, mix(high + low + word)


@triton.jit
def noise_key(seed, choice, position):
    """Return the row's two uint32 words for scalars int64."""
    low = tl.full([], _GOLDEN, tl.uint32)
    high = tl.full([], 0x85EBCA6B, tl.uint32)
    low, high = _absorb(low, high, seed.to(tl.uint32))
    low, high = _absorb(low, high, (seed >> 32).to(tl.uint32))
    low, high = _absorb(low, high, choice.to(tl.uint32))
    return _absorb(low, high, position.to(tl.uint32))


@triton.jit
def noise_bits(tokens, low, high):
    """Hash tokens, int32 of any shape, to uint32 of 32 uniform bits each."""
    h = mix(tokens.to(tl.uint32) * _GOLDEN + low)
    return mix((h ^ high) + _GOLDEN)


@triton.jit
def gumbel(bits):
    # By way of int32: 23 bits fit, and its conversion is one instruction everywhere.
    u = ((bits >> 9).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2^-23
    return -tl.log(-tl.log(u))
