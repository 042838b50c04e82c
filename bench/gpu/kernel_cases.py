"""List a benchmark case for each Triton kernel: its launch at a serving size, and the bytes it must read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from kernels.attention.kv_commit import kv_commit
from kernels.attention.ragged_attention import PREFILL, VERIFY, AttentionTiling, Batch, ragged_attention
from kernels.attention.work_list import Work, work_list
from kernels.layers.fixed_linear import fixed_linear
from kernels.layers.gated_silu import gated_silu
from kernels.layers.rms_norm import add_rms_norm
from kernels.layers.rotary_store import rotary_store
from kernels.sampling.choices import pack_rows
from kernels.sampling.target_token import Choice, Row
from kernels.sampling.target_token_batch import target_token_batch
from kernels.sampling.top_logprobs import top_logprobs

DTYPE = torch.bfloat16
HIDDEN, HEADS, KEY_HEADS, HEAD_DIM, PAGE = 4096, 32, 8, 128, 16  # of an 8B model


@dataclass(frozen=True, slots=True)
class Case:
    """One launch to time."""

    kernel: str
    name: str
    run: Callable[[], object]
    bytes_read: int = 0  # the least that the kernel must read; 0 where a rate says nothing


def all_cases(device: torch.device, num_rows: int, vocab_size: int) -> Iterator[Case]:
    """Yield every case; its inputs are made when it is reached."""
    yield from _tokens(device, num_rows, vocab_size)
    yield from _layers(device, num_rows)
    yield from _pages(device)


def _tokens(device: torch.device, num_rows: int, vocab_size: int) -> Iterator[Case]:
    """Yield the kernels over a batch of logits (R, V)."""
    logits = 3 * torch.randn(num_rows, vocab_size, dtype=DTYPE, device=device)
    plain = Choice(1.0, 1.0, 0, 0.0, 1)
    seen = dict.fromkeys(range(0, vocab_size, max(1, vocab_size // 1000)), 1)
    kinds = {
        "greedy": Row(plain._replace(temperature=0.0), 0),
        "sampled": Row(plain, 0),
        "top-p 0.9": Row(plain._replace(top_p=0.9), 0),
        "top-k 50": Row(plain._replace(top_k=50), 0),
        "top-k 20, top-p 0.8": Row(plain._replace(top_k=20, top_p=0.8, temperature=0.7), 0),
        "sampled, 1000 penalties": Row(plain, 0, counts=seen, presence_penalty=1.0),
    }
    for name, row in kinds.items():
        choices = pack_rows([replace(row, position=position) for position in range(num_rows)], vocab_size, device)
        yield Case("target_token_batch", name, partial(target_token_batch, logits, choices), logits.nbytes)
    yield Case("top_logprobs", "20 of each row", partial(top_logprobs, logits, None, 20), logits.nbytes)


def _layers(device: torch.device, rows: int) -> Iterator[Case]:
    """Yield the kernels between two attentions."""
    wide = 7 * HIDDEN // 2
    x, residual, out = torch.randn(3, rows, HIDDEN, dtype=DTYPE, device=device).unbind()
    norm = partial(add_rms_norm, x, residual, residual[0].clone(), 1e-5, out)
    yield Case("rms_norm", f"{rows} rows of {HIDDEN}", norm, 2 * x.nbytes)
    gate_up, gated = (torch.randn(rows, n * wide, dtype=DTYPE, device=device) for n in (2, 1))
    yield Case("gated_silu", f"{rows} rows of {wide}", partial(gated_silu, gate_up, gated), gate_up.nbytes)
    weight = torch.randn((HEADS + 2 * KEY_HEADS) * HEAD_DIM, HIDDEN, dtype=DTYPE, device=device)
    name = f"{rows} rows, {HIDDEN} -> {len(weight)}"
    yield Case("fixed_linear", name, partial(fixed_linear, x, weight), weight.nbytes)
    qkv, ints = x @ weight.T, torch.arange(rows, device=device).int()
    cos, sin = torch.randn(2, rows, HEAD_DIM, device=device).unbind()
    k, v = torch.zeros(2, rows, PAGE, KEY_HEADS, HEAD_DIM, dtype=DTYPE, device=device).unbind()
    store = partial(rotary_store, qkv, ints, PAGE * ints, cos, sin, k, v, HEADS)
    yield Case("rotary_store", f"{rows} rows, {HEADS} heads on {KEY_HEADS}", store, qkv.nbytes)


def _pages(device: torch.device) -> Iterator[Case]:
    """Yield attention over pages, and the copies that keep an accepted path."""
    for name, spans, tiling in (
        ("8 sequences of 2048, 8 new rows each", [(2048, 8)] * 8, VERIFY),
        ("a prompt of 1024", [(0, 1024)], PREFILL),
    ):
        batch, work = laid_out(spans, tiling, device)
        q = torch.randn(sum(new for _, new in spans), HEADS, HEAD_DIM, dtype=DTYPE, device=device)
        pages = torch.randn(2, batch.blocks.numel(), PAGE, KEY_HEADS, HEAD_DIM, dtype=DTYPE, device=device)
        attend = partial(ragged_attention, q, pages[0], pages[1], batch, work, HEAD_DIM**-0.5, tiling=tiling)
        yield Case("ragged_attention", name, attend, pages.nbytes)
    batch, _ = laid_out([(2048, 64)] * 4, VERIFY, device)
    cache = torch.randn(2, 4, batch.blocks.numel(), PAGE, KEY_HEADS, HEAD_DIM, dtype=DTYPE, device=device)
    path = torch.arange(0, 16, 2, device=device).int().repeat(4, 1)
    lengths = torch.full((4,), 8, device=device).int()
    commit = partial(kv_commit, cache[0], cache[1], batch.blocks, batch.prefix, path, lengths)
    yield Case("kv_commit", "4 paths of 8, 4 layers", commit)


def laid_out(
    spans: list[tuple[int, int]], tiling: AttentionTiling, device: torch.device, *, has_chains: bool = False
) -> tuple[Batch, Work]:
    """Lay out (cached tokens, new rows) of sequences, pages in no order, and list attention's work.

    The rows are causal; `has_chains`: they are so by the ancestors of a tree.
    """
    prefixes, rows = torch.tensor(spans).unbind(1)
    firsts = rows.cumsum(0) - rows
    each = max(-(-(prefix + new) // PAGE) for prefix, new in spans)
    pages = torch.randperm(each * len(spans)).view(len(spans), each)
    work = work_list(
        firsts.numpy(), rows.numpy(), prefixes.numpy(), int(rows.sum()), HEADS // KEY_HEADS, tiling.rows,
        tiling.split_keys,
    )  # fmt: skip
    first_row, num_rows, prefix, blocks = (x.int().to(device) for x in (firsts, rows, prefixes, pages))
    ancestors = depth = None
    if has_chains:
        depths = torch.cat([torch.arange(new) for _, new in spans])
        ancestors, depth = ((2 << depths) - 1).to(device), depths.int().to(device)
    return Batch(first_row, num_rows, prefix, blocks, ancestors, depth), work.on_device(device)
