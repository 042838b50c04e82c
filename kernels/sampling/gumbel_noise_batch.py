"""Compute the noise of `kernels.sampling.gumbel_noise` on the device, for many rows at once.

    h = mix(mix(token * GOLDEN + low) ^ high + GOLDEN)    with (low, high) from (seed, choice, position)
    G = -log(-log((h >> 9 + 1/2) / 2^23))

All of it in wrapping 32-bit integers until the last line, so the bits are those of the reference;
the logarithms agree within a few ulps. The functions without a leading underscore are for other
kernels to call.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.compile import CompileCase
from kernels.sampling.gumbel_noise import GOLDEN

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch; the functions around it are typed)

_GOLDEN = tl.constexpr(GOLDEN)
BLOCK = 2048


@triton.jit
def mix(h):
    """Apply murmur3's finaliser; h: uint32 of any shape."""
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
    """Turn bits, uint32, into float32 noise."""
    # By way of int32: 23 bits fit, and its conversion is one instruction everywhere.
    u = ((bits >> 9).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2^-23
    return -tl.log(-tl.log(u))


@triton.jit
def _gumbel_noise_kernel(
    seeds_ptr,  # (N,) int64
    choices_ptr,  # (N,) int64
    positions_ptr,  # (N,) int64
    bits_ptr,  # (N, V) int32, the bits as they are
    noise_ptr,  # (N, V) float32
    V,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    low, high = noise_key(tl.load(seeds_ptr + row), tl.load(choices_ptr + row), tl.load(positions_ptr + row))
    bits = noise_bits(tokens, low, high)
    tl.store(bits_ptr + row * V + tokens, bits.to(tl.int32, bitcast=True), mask=tokens < V)
    tl.store(noise_ptr + row * V + tokens, gumbel(bits), mask=tokens < V)


def gumbel_noise_batch(
    seeds: torch.Tensor,  # (N,) int64
    choices: torch.Tensor,  # (N,) int64
    positions: torch.Tensor,  # (N,) int64
    vocab_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ((N, V) int64 that hold 32 bits, (N, V) float32 noise) of every token at each row's
    place."""
    assert seeds.shape == choices.shape == positions.shape and seeds.ndim == 1
    assert seeds.dtype == choices.dtype == positions.dtype == torch.int64
    bits = torch.empty(len(seeds), vocab_size, dtype=torch.int32, device=seeds.device)
    noise = torch.empty_like(bits, dtype=torch.float32)
    _gumbel_noise_kernel[(len(seeds), triton.cdiv(vocab_size, BLOCK))](
        seeds.contiguous(), choices.contiguous(), positions.contiguous(), bits, noise, vocab_size, BLOCK=BLOCK
    )
    return bits.to(torch.int64) & 0xFFFFFFFF, noise


def compile_cases() -> Iterator[CompileCase]:
    """Yield the cases that `kernels.compile` compiles without a GPU."""
    places = torch.empty(8, dtype=torch.int64, device="meta")
    yield CompileCase("noise", lambda: gumbel_noise_batch(places, places, places, 49152), reads_rows=False)
