"""Find the n likeliest tokens of each row of logits with their log-probabilities, n <= 20.

    log p(x) = y(x) - log sum exp y,   y: the logits after bias, penalties and the allowed-token mask

before temperature and filters. By falling y, equal ones by rising id. Each block finds its n best by n rounds of argmax
and mask; a second kernel finds the row's among those.
"""

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl

from kernels.compile import CompileCase
from kernels.sampling.choices import Edits, meta_edits
from kernels.sampling.logit_blocks import (
    BLOCK,
    block_arguments,
    exp_sum,
    first_of,
    num_blocks_of,
    read_block,
    shaped_rows,
)
from kernels.sampling.target_token import Row

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch; the functions around it are typed)

MAX_TOP = 20


def top_logprobs_reference(logits: torch.Tensor, rows: Sequence[Row], n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort logits (N, V): ((N, n) int32 tokens, (N, n) float32 log-probabilities); the specification."""
    logprobs = torch.stack([y.log_softmax(0) for y in shaped_rows(logits, rows)])
    best, order = logprobs.sort(dim=1, descending=True, stable=True)
    return order[:, :n].int(), best[:, :n]


@triton.jit(do_not_specialize=["n"])
def _block_top_kernel(
    logits_ptr,
    words_ptr,
    first_ptr,
    edit_tokens_ptr,
    divide_ptr,
    add_ptr,
    subtract_ptr,
    best_ptr,  # (N, M, n) float32
    ids_ptr,  # (N, M, n) int32
    sums_ptr,  # (N, M) sum of exp(y - highest y)
    V,
    row_stride,
    num_words,
    num_blocks,
    n,
    EDITED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the n best of one block. Grid (N, M)."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids, y = read_block(
        logits_ptr, words_ptr, first_ptr, edit_tokens_ptr, divide_ptr, add_ptr, subtract_ptr,
        row, block, V, row_stride, num_words, num_blocks, EDITED, BLOCK,
    )  # fmt: skip
    part = row * tl.num_programs(1) + block
    highest = tl.max(y, 0)
    tl.store(sums_ptr + part, exp_sum(y, highest))
    for i in range(0, n):
        best, token = first_of(y, ids, V)
        tl.store(best_ptr + part * n + i, best)
        tl.store(ids_ptr + part * n + i, token)
        y = tl.where(ids == token, -float("inf"), y)


@triton.jit(do_not_specialize=["n", "num_parts"])  # they change from step to step
def _row_top_kernel(
    best_ptr,  # (N, M, n)
    ids_ptr,  # (N, M, n)
    sums_ptr,  # (N, M)
    tokens_ptr,  # (N, n) int32
    logprobs_ptr,  # (N, n)
    V,
    n,
    num_parts,
    PARTS: tl.constexpr,  # power of two >= num_parts
    SIZE: tl.constexpr,  # power of two >= num_parts * n, the same for all n up to a power of two
):
    """Find the n best of a row among its blocks' n best. Grid (N,)."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, PARTS)
    part = row * num_parts + lane
    highests = tl.load(best_ptr + part * n, mask=lane < num_parts, other=-float("inf"))
    sums = tl.load(sums_ptr + part, mask=lane < num_parts, other=0.0)
    highest = tl.max(highests, 0)
    log_sum = highest + tl.log(tl.sum(sums * tl.exp(highests - highest), 0))

    slot = tl.arange(0, SIZE)
    place = row * num_parts * n + slot
    y = tl.load(best_ptr + place, mask=slot < num_parts * n, other=-float("inf"))
    ids = tl.load(ids_ptr + place, mask=slot < num_parts * n, other=V)
    for i in range(0, n):
        best, token = first_of(y, ids, V)
        tl.store(tokens_ptr + row * n + i, token)
        tl.store(logprobs_ptr + row * n + i, best - log_sum)
        y = tl.where(ids == token, -float("inf"), y)


def top_logprobs(logits: torch.Tensor, edits: Edits | None, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (N, V) of any float type -> ((N, n) int32 tokens, (N, n) float32 log-probabilities).

    With fewer than n allowed tokens the rest are -inf, with undefined tokens.
    """
    N, V = logits.shape
    assert N > 0 and 0 < n <= min(MAX_TOP, V)
    num_blocks, num_parts = num_blocks_of(V, edits)
    best = logits.new_empty(N, num_parts, n, dtype=torch.float32)
    ids = logits.new_empty(N, num_parts, n, dtype=torch.int32)
    sums = logits.new_empty(N, num_parts, dtype=torch.float32)
    tokens = logits.new_empty(N, n, dtype=torch.int32)
    logprobs = logits.new_empty(N, n, dtype=torch.float32)
    _block_top_kernel[(N, num_parts)](
        *block_arguments(logits, edits), best, ids, sums, V, logits.stride(0), triton.cdiv(V, 32), num_blocks, n,
        EDITED=edits is not None, BLOCK=BLOCK,
    )  # fmt: skip
    most = triton.next_power_of_2(num_blocks * (2 if edits else 1))  # whatever the number of edits
    _row_top_kernel[(N,)](
        best, ids, sums, tokens, logprobs, V, n, num_parts, PARTS=most, SIZE=most * triton.next_power_of_2(n)
    )  # fmt: skip
    return tokens, logprobs


def compile_cases() -> Iterator[CompileCase]:
    logits = torch.empty(8, 49152, device="meta")
    yield CompileCase("top 20", lambda: top_logprobs(logits, meta_edits(8, 49152), MAX_TOP))
