"""Pool several drafters' candidates for one place by confidence, and keep the n likeliest, for many
places at once.

It is what `app.stages.fuse` does below one parent. With o = c / (1 - sum of that drafter's c's at
the place), each drafter's sum first brought down to `max_mass`,

    odds(x) = (1 + strongest o) * prod(1 + other o) ** agreement - 1      over the drafters that name x
    probability(x) = odds(x) / (1 + sum of all odds)

A drafter that names a token twice counts once, with its higher confidence. All pairs of the up to
64 candidates are compared at once, and n rounds of argmax and mask pick the best: at this size
nothing needs a sort.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
import triton
import triton.language as tl

from kernels.compile import CompileCase

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch; the functions around it are typed)

MAX_CANDIDATES = 64
MAX_ODDS = 1e6  # of a token, however many agree


@dataclass(frozen=True, slots=True)
class Fused:
    """The best tokens of each place, by falling probability; equal ones by their first place among
    the candidates."""

    tokens: torch.Tensor  # (P, n) int32
    probabilities: torch.Tensor  # (P, n) float32; zeros where there are fewer tokens
    counts: torch.Tensor  # (P,) int32, how many of the n there are


def fuse_candidates_reference(
    tokens: torch.Tensor,  # (P, K) int32
    drafters: torch.Tensor,  # (P, K) int32, the drafter that named it
    confidences: torch.Tensor,  # (P, K) float32 in [0, 1], calibrated
    sizes: torch.Tensor,  # (P,) int32, candidates of each place; columns from there on are never read
    n: int,
    agreement: float,
    max_mass: float,
) -> Fused:
    """Fuse in Python's own floats: the specification."""
    P = len(tokens)
    fused = Fused(torch.zeros(P, n, dtype=torch.int32), torch.zeros(P, n), torch.zeros(P, dtype=torch.int32))
    for place in range(P):
        says: dict[int, dict[int, float]] = {}
        rows = (x[place, : int(sizes[place])].tolist() for x in (tokens, drafters, confidences))
        for token, drafter, confidence in zip(*rows, strict=True):
            named = says.setdefault(token, {})
            named[drafter] = max(named.get(drafter, 0.0), confidence)
        mass: dict[int, float] = {}
        for named in says.values():
            for drafter, confidence in named.items():
                mass[drafter] = mass.get(drafter, 0.0) + confidence
        scale = {drafter: min(1.0, max_mass / total) if total else 1.0 for drafter, total in mass.items()}
        odds = {}
        for token, named in says.items():
            factors = [1.0 + c * scale[d] / (1.0 - mass[d] * scale[d]) for d, c in named.items()]
            odds[token] = min(MAX_ODDS, max(factors) * (prod(factors) / max(factors)) ** agreement - 1.0)
        best = sorted(odds.items(), key=lambda item: -item[1])[:n]
        fused.counts[place] = len(best)
        for i, (token, o) in enumerate(best):
            fused.tokens[place, i], fused.probabilities[place, i] = token, o / (1.0 + sum(odds.values()))
    return fused


@triton.jit
def _fuse_candidates_kernel(
    tokens_ptr,  # (P, K) int32
    drafters_ptr,  # (P, K) int32
    confidences_ptr,  # (P, K)
    sizes_ptr,  # (P,) int32
    best_ptr,  # (P, n) int32
    probabilities_ptr,  # (P, n)
    counts_ptr,  # (P,) int32
    K,
    n,
    agreement,
    max_mass,
    max_odds,
    BLOCK: tl.constexpr,  # power of two >= K
):
    """Fuse one place. Grid (P,). In a matrix of pairs, [:, None] is one candidate and [None, :] the
    other."""
    place = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    inside = lane < tl.load(sizes_ptr + place)
    tokens = tl.load(tokens_ptr + place * K + lane, mask=inside, other=-1)
    drafters = tl.load(drafters_ptr + place * K + lane, mask=inside, other=-1)
    c = tl.load(confidences_ptr + place * K + lane, mask=inside, other=0.0)

    pair = inside[:, None] & inside[None, :]
    same_token = pair & (tokens[:, None] == tokens[None, :])
    same_drafter = pair & (drafters[:, None] == drafters[None, :])
    earlier = lane[None, :] < lane[:, None]
    beaten = (c[None, :] > c[:, None]) | ((c[None, :] == c[:, None]) & earlier)
    counts = inside & (tl.sum((same_token & same_drafter & beaten).to(tl.int32), 1) == 0)  # the drafter's best for it
    is_first = inside & (tl.sum((same_token & earlier).to(tl.int32), 1) == 0)  # stands for all of the token

    c = tl.where(counts, c, 0.0)
    mass = tl.sum(tl.where(same_drafter, c[None, :], 0.0), 1)
    scale = tl.minimum(1.0, max_mass / tl.maximum(mass, 1e-30))
    log_factor = tl.log(1.0 + c * scale / (1.0 - mass * scale))  # 0 for what does not count
    strongest = tl.max(tl.where(same_token, log_factor[None, :], 0.0), 1)
    others = tl.sum(tl.where(same_token, log_factor[None, :], 0.0), 1) - strongest
    odds = tl.minimum(tl.exp(strongest + agreement * others) - 1.0, max_odds)
    odds = tl.where(is_first, odds, 0.0)
    total = 1.0 + tl.sum(odds, 0)

    left = tl.where(is_first, odds, -1.0)
    num_tokens = tl.sum(is_first.to(tl.int32), 0)
    tl.store(counts_ptr + place, tl.minimum(num_tokens, n))
    for i in range(0, n):
        best = tl.max(left, 0)
        winner = tl.min(tl.where(left == best, lane, BLOCK), 0)
        token = tl.sum(tl.where(lane == winner, tokens, 0), 0)
        tl.store(best_ptr + place * n + i, tl.where(i < num_tokens, token, 0))
        tl.store(probabilities_ptr + place * n + i, tl.where(i < num_tokens, best / total, 0.0))
        left = tl.where(lane == winner, -2.0, left)


def fuse_candidates(
    tokens: torch.Tensor,
    drafters: torch.Tensor,
    confidences: torch.Tensor,
    sizes: torch.Tensor,
    n: int,
    agreement: float,
    max_mass: float,
) -> Fused:
    """Fuse on the device in float32; arguments and result as the reference's."""
    P, K = tokens.shape
    assert drafters.shape == confidences.shape == (P, K) and sizes.shape == (P,)
    assert 0 < K <= MAX_CANDIDATES and 0 < n <= K
    assert tokens.dtype == drafters.dtype == sizes.dtype == torch.int32 and confidences.dtype == torch.float32
    assert all(x.is_contiguous() for x in (tokens, drafters, confidences, sizes))
    fused = Fused(tokens.new_empty(P, n), confidences.new_empty(P, n), tokens.new_empty(P))
    _fuse_candidates_kernel[(P,)](
        tokens, drafters, confidences, sizes, fused.tokens, fused.probabilities, fused.counts,
        K, n, agreement, max_mass, MAX_ODDS, BLOCK=triton.next_power_of_2(K), num_warps=8,
    )  # fmt: skip
    return fused


def compile_cases() -> Iterator[CompileCase]:
    """Yield the cases that `kernels.compile` compiles without a GPU."""
    integers, sizes = (torch.empty(shape, dtype=torch.int32, device="meta") for shape in ((8, 64), (8,)))
    floats = torch.empty(8, 64, device="meta")
    yield CompileCase(
        "64 candidates",
        lambda: fuse_candidates(integers, integers, floats, sizes, 8, 0.35, 0.999),
        reads_rows=False,
    )
