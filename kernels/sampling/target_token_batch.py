"""Choose the target's token for N rows of logits on the device, each by its own choice
(`kernels.sampling.target_token`).

    token = argmax over the kept x of z(x) + G(seed, choice, position, x),   z = y / temperature

y are the logits after bias, penalties and the allowed-token mask; temperature 0 is the argmax of y. Ties go to the
lowest id. A token is kept if z(x) >= max z + log min_p, if fewer than top_k tokens are above it, and if the tokens
above it have less than top_p of the mass (of the top-k tokens, where both are set).

One pass finds the best token, the next counts what is above it and finds the best of those: the next candidate if the
first is filtered out, as then is everything below it. With both top-k and top-p, bisection first finds the top-k
tokens' mass. Logits must not be NaN. Sums are float32: a token within some 1e-6 of the edge of top-p may fall on its
other side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl

from kernels.compile import CompileCase
from kernels.sampling.choices import RowChoices, meta_choices, meta_edits
from kernels.sampling.gumbel_noise_triton import gumbel, noise_bits, noise_key
from kernels.sampling.logit_blocks import (
    BLOCK,
    block_arguments,
    exp_sum,
    first_of,
    num_blocks_of,
    read_block,
    shaped_rows,
)
from kernels.sampling.target_token import Row, target_token_reference

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch; the functions around it are typed)


def target_token_batch_reference(logits: torch.Tensor, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (N, V) -> ((N,) int32 tokens, (N,) float32 log-probabilities of y); the specification."""
    tokens, logprobs = [], []
    for y, row in zip(shaped_rows(logits, rows), rows, strict=True):
        tokens.append(target_token_reference(y, row.choice, row.position))
        logprobs.append(y.log_softmax(0)[tokens[-1]])
    return torch.tensor(tokens, dtype=torch.int32), torch.stack(logprobs)


@triton.jit
def _first_pass_kernel(
    logits_ptr,
    words_ptr,
    first_ptr,
    edit_tokens_ptr,
    divide_ptr,
    add_ptr,
    subtract_ptr,
    temperature_ptr,  # (N,)
    seed_ptr,  # (N,) int64
    choice_ptr,  # (N,) int64
    position_ptr,  # (N,) int64
    parts_ptr,  # (N, M, 4) float32: highest y, best z + G, its y, sum of exp(y - highest y)
    part_ids_ptr,  # (N, M) int32: the best one's id
    V,
    row_stride,
    num_words,
    num_blocks,
    EDITED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the best token of one block of a row. Grid (N, M)."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids, y = read_block(
        logits_ptr, words_ptr, first_ptr, edit_tokens_ptr, divide_ptr, add_ptr, subtract_ptr,
        row, block, V, row_stride, num_words, num_blocks, EDITED, BLOCK,
    )  # fmt: skip
    temperature = tl.load(temperature_ptr + row)
    noisy = y
    if temperature > 0.0:
        low, high = noise_key(tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(position_ptr + row))
        noisy = tl.div_rn(y, temperature) + gumbel(noise_bits(ids, low, high))
    best, token = first_of(noisy, ids, V)
    highest = tl.max(y, 0)
    part = row * tl.num_programs(1) + block
    tl.store(parts_ptr + part * 4, highest)
    tl.store(parts_ptr + part * 4 + 1, best)
    tl.store(parts_ptr + part * 4 + 2, tl.max(tl.where(ids == token, y, -float("inf")), 0))
    tl.store(parts_ptr + part * 4 + 3, exp_sum(y, highest))
    tl.store(part_ids_ptr + part, token)


@triton.jit
def _top_k_mass(
    logits_ptr,
    words_ptr,
    first_ptr,
    edit_tokens_ptr,
    divide_ptr,
    add_ptr,
    subtract_ptr,
    row,
    V,
    row_stride,
    num_words,
    num_blocks,
    num_parts,
    temperature,
    peak,  # the highest z
    top_k,
    EDITED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return (a threshold of just the top-k tokens, the sum of their exp(z - peak), passes over the row)."""
    passes = 0
    total = 0.0
    lowest = -float("inf")  # the k-th highest z lies in [lowest, ceiling], and both occur
    ceiling = peak
    step = 2.0
    searching = True
    while searching:
        middle = ceiling - step
        if lowest > -float("inf"):
            middle = lowest + (ceiling - lowest) * 0.5
        middle = tl.where(middle > lowest, middle, ceiling)
        count = tl.zeros([BLOCK], tl.int32)
        mass = tl.zeros([BLOCK], tl.float32)
        least = tl.full([BLOCK], float("inf"), tl.float32)
        below = tl.full([BLOCK], -float("inf"), tl.float32)
        for block in range(0, num_parts):
            ids, ys = read_block(
                logits_ptr, words_ptr, first_ptr, edit_tokens_ptr, divide_ptr, add_ptr, subtract_ptr,
                row, block, V, row_stride, num_words, num_blocks, EDITED, BLOCK,
            )  # fmt: skip
            z = tl.div_rn(ys, temperature)
            above = z >= middle
            count += above.to(tl.int32)
            mass += tl.where(above, tl.exp(z - peak), 0.0)
            least = tl.minimum(least, tl.where(above, z, float("inf")))
            below = tl.maximum(below, tl.where(above, -float("inf"), z))
        passes += 1
        step *= 2.0
        num_above, next_below = tl.sum(count, 0), tl.max(below, 0)
        enough = num_above >= top_k
        lowest = tl.where(enough, tl.min(least, 0), lowest)
        ceiling = tl.where(enough, ceiling, next_below)
        is_whole = ~enough & (next_below == -float("inf"))  # there are fewer than k tokens
        total = tl.where(enough | is_whole, tl.sum(mass, 0), total)
        searching = (num_above != top_k) & (lowest != ceiling) & ~is_whole
    return lowest, total, passes


@triton.jit(do_not_specialize=["num_parts"])  # edits change from step to step
def _finish_kernel(
    logits_ptr,
    words_ptr,
    first_ptr,
    edit_tokens_ptr,
    divide_ptr,
    add_ptr,
    subtract_ptr,
    temperature_ptr,
    top_k_ptr,  # (N,) int32
    top_p_ptr,  # (N,)
    log_min_p_ptr,  # (N,)
    seed_ptr,
    choice_ptr,
    position_ptr,
    parts_ptr,
    part_ids_ptr,
    tokens_ptr,  # (N,) int32
    logprobs_ptr,  # (N,)
    passes_ptr,  # (N,) int32, how often this kernel has read the row
    V,
    row_stride,
    num_words,
    num_blocks,
    num_parts,
    EDITED: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,  # power of two >= num_parts
):
    """Join the blocks of a row, then test its best token until one is kept. Grid (N,)."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, PARTS)
    part = row * num_parts + lane
    inside = lane < num_parts
    highests = tl.load(parts_ptr + part * 4, mask=inside, other=-float("inf"))
    bests = tl.load(parts_ptr + part * 4 + 1, mask=inside, other=-float("inf"))
    part_ids = tl.load(part_ids_ptr + part, mask=inside, other=V)
    _, token = first_of(bests, part_ids, V)
    y = tl.load(parts_ptr + part * 4 + 2, mask=inside & (part_ids == token), other=-float("inf"))
    y = tl.max(y, 0)
    highest = tl.max(highests, 0)
    sums = tl.load(parts_ptr + part * 4 + 3, mask=inside, other=0.0)
    log_sum = highest + tl.log(tl.sum(sums * tl.exp(highests - highest), 0))

    temperature = tl.load(temperature_ptr + row)
    passes = 0
    if temperature > 0.0:
        top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
        has_top_k, has_top_p = (top_k > 0) & (top_k < V), top_p < 1.0
        peak = tl.div_rn(highest, temperature)
        floor = peak + tl.load(log_min_p_ptr + row)
        total = 0.0
        if has_top_k & has_top_p:
            lowest, total, passes = _top_k_mass(
                logits_ptr, words_ptr, first_ptr, edit_tokens_ptr, divide_ptr, add_ptr, subtract_ptr,
                row, V, row_stride, num_words, num_blocks, num_parts, temperature, peak, top_k, EDITED, BLOCK,
            )  # fmt: skip
            floor = tl.maximum(floor, lowest)

        low, high = noise_key(tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(position_ptr + row))
        judged = tl.div_rn(y, temperature)
        unsettled = has_top_k | has_top_p | (judged < floor)
        while unsettled:
            count = tl.zeros([BLOCK], tl.int32)
            mass = tl.zeros([BLOCK], tl.float32)
            whole = tl.zeros([BLOCK], tl.float32)
            best = tl.full([BLOCK], -float("inf"), tl.float32)
            best_y = tl.full([BLOCK], -float("inf"), tl.float32)
            best_id = tl.full([BLOCK], 0, tl.int32) + V
            for block in range(0, num_parts):
                ids, ys = read_block(
                    logits_ptr, words_ptr, first_ptr, edit_tokens_ptr, divide_ptr, add_ptr, subtract_ptr,
                    row, block, V, row_stride, num_words, num_blocks, EDITED, BLOCK,
                )  # fmt: skip
                z = tl.div_rn(ys, temperature)
                weight = tl.exp(z - peak)
                above = z > judged
                count += above.to(tl.int32)
                mass += tl.where(above, weight, 0.0)
                whole += weight
                noisy = tl.where(above & (z >= floor), z + gumbel(noise_bits(ids, low, high)), -float("inf"))
                better = (noisy > best) | ((noisy == best) & (ids < best_id))
                best, best_y = tl.where(better, noisy, best), tl.where(better, ys, best_y)
                best_id = tl.where(better, ids, best_id)
            passes += 1
            limit = top_p * tl.where(has_top_k, total, tl.sum(whole, 0))
            is_kept = (judged >= floor) & (~has_top_k | (tl.sum(count, 0) < top_k))
            is_kept = is_kept & (~has_top_p | (tl.sum(mass, 0) < limit))
            next_best, next_token = first_of(best, best_id, V)
            if ~is_kept:
                token = next_token
                y = tl.max(tl.where(best_id == next_token, best_y, -float("inf")), 0)
                judged = tl.div_rn(y, temperature)
            unsettled = ~is_kept & (has_top_k | has_top_p) & (next_best > -float("inf"))

    tl.store(tokens_ptr + row, token)
    tl.store(logprobs_ptr + row, y - log_sum)
    tl.store(passes_ptr + row, passes)


@dataclass(frozen=True, slots=True)
class Chosen:
    tokens: torch.Tensor  # (N,) int32
    logprobs: torch.Tensor  # (N,) float32, of y: before temperature and filters
    passes: torch.Tensor  # (N,) int32, over the row's logits after the first


def target_token_batch(logits: torch.Tensor, choices: RowChoices) -> Chosen:
    """Logits (N, V) of any float type, rows contiguous."""
    N, V = logits.shape
    assert len(choices.temperature) == N and N > 0
    num_blocks, num_parts = num_blocks_of(V, choices.edits)
    pointers = block_arguments(logits, choices.edits)
    sizes = (V, logits.stride(0), triton.cdiv(V, 32), num_blocks)
    parts = logits.new_empty(N, num_parts, 4, dtype=torch.float32)
    part_ids = logits.new_empty(N, num_parts, dtype=torch.int32)
    chosen = Chosen(
        tokens=logits.new_empty(N, dtype=torch.int32),
        logprobs=logits.new_empty(N, dtype=torch.float32),
        passes=logits.new_empty(N, dtype=torch.int32),
    )
    c, edited = choices, choices.edits is not None
    _first_pass_kernel[(N, num_parts)](
        *pointers, c.temperature, c.seed, c.choice, c.position, parts, part_ids, *sizes, EDITED=edited, BLOCK=BLOCK
    )
    _finish_kernel[(N,)](
        *pointers, c.temperature, c.top_k, c.top_p, c.log_min_p, c.seed, c.choice, c.position, parts, part_ids,
        chosen.tokens, chosen.logprobs, chosen.passes, *sizes, num_parts,
        EDITED=edited, BLOCK=BLOCK, PARTS=triton.next_power_of_2(num_blocks * (2 if edited else 1)), num_warps=8,
    )  # fmt: skip
    return chosen


def compile_cases() -> Iterator[CompileCase]:
    # Edits are gathered one by one; in float32 that does not look like rows read in bits of 16.
    for dtype, edits in ((torch.bfloat16, None), (torch.float32, meta_edits(8, 49152))):
        logits = torch.empty(8, 49152, dtype=dtype, device="meta")
        yield CompileCase(str(dtype), partial(target_token_batch, logits, meta_choices(8, edits)))
