"""List what `kernels.bench` times: each kernel's inputs at a serving size, its reference, its
launch where it can run.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gguf
import numpy as np
import torch
import torch.nn.functional as F

from kernels.attention.kv_commit import kv_commit, kv_commit_reference
from kernels.attention.ragged_attention import (
    FLOAT32,
    PREFILL,
    VERIFY,
    Batch,
    ragged_attention,
    ragged_attention_reference,
)
from kernels.attention.work_list import work_list
from kernels.cpu.attention import SPLIT, attend, join
from kernels.cpu.products.linear import LINEAR, call_linear
from kernels.cpu.products.pack import pack, pack_stored
from kernels.cpu.products.packed_linear import PackedLinear, packed_linear_reference
from kernels.host.best_lengths import Search, best_lengths, best_lengths_reference
from kernels.host.merged_trees import Drafts, merged_tree_reference, merged_trees
from kernels.host.phrase_tables import phrase_tables
from kernels.host.phrase_tree import OwnTexts, phrase_tree_reference, phrase_trees, room
from kernels.jit import entry
from kernels.layers.fixed_linear import fixed_linear, fixed_linear_reference
from kernels.layers.gated_silu import gated_silu, gated_silu_reference
from kernels.layers.rms_norm import add_rms_norm, add_rms_norm_reference
from kernels.layers.rotary_store import rotary_store, rotary_store_reference
from kernels.sampling.choices import pack_rows
from kernels.sampling.target_token import Choice, Row
from kernels.sampling.target_token_batch import target_token_batch, target_token_batch_reference
from kernels.sampling.top_logprobs import top_logprobs, top_logprobs_reference

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    kernel: str
    name: str
    reference: Callable[[], Any]
    reference_device: torch.device
    run: Callable[[], Any] | None  # None: not on this device
    bytes_read: int = 0  # the least the kernel must read; 0 where that says nothing


def all_cases(device: torch.device, num_rows: int, vocab_size: int) -> Iterator[Case]:
    """Yield every case of the device. Inputs are made as they are asked for."""
    if device == CPU:
        yield from _cpu_products()
        yield from _cpu_attention()
        yield _cpu_phrase_tree()
        yield _cpu_merged_trees()
        yield _cpu_best_lengths()
    for cases in (_tokens(device, num_rows, vocab_size), _layers(device, num_rows), _pages(device)):
        for case in cases:
            yield case if device != CPU else replace(case, run=None)


def _cpu_products() -> Iterator[Case]:
    """Yield the kernels for CPUs: a layer of a small model on a few rows."""
    rows, depth, columns = 8, 576, 1536
    x, weight = torch.randn(rows, depth), torch.randn(columns, depth)
    reference = partial(packed_linear_reference, x, weight, None)
    name = f"{rows} rows, {depth} -> {columns}"
    packed = PackedLinear(weight, None)
    yield Case("packed_linear", name, reference, CPU, lambda: packed(x), weight.nbytes)
    out, flat = np.empty((rows, columns), np.float32), x.numpy()
    for kind in ("F32", "BF16", "Q8_0", "Q4_0", "Q4_1"):
        blocks, dense = _packed(kind, weight.numpy())
        reference = partial(packed_linear_reference, x, torch.from_numpy(dense), None)
        run = partial(_multiply, LINEAR[kind].address, flat, blocks.reshape(len(blocks), -1).view(np.uint8), out)
        yield Case(f"cpu.linear {kind}", name, reference, CPU, run, blocks.nbytes)


def _packed(kind: str, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a weight (N, K) to one of ggml's types; return it packed, and what it stands for."""
    if kind == "F32":
        return pack(weight), weight
    named = gguf.GGMLQuantizationType[kind]
    rows = gguf.quants.quantize(weight, named)
    return pack_stored(kind, rows.view(np.uint8), weight.shape[1]), gguf.quants.dequantize(rows, named)


@entry
def _multiply(kernel: int, x: np.ndarray, w: np.ndarray, out: np.ndarray) -> np.ndarray:
    call_linear(
        kernel, x.shape[0], x.ctypes.data, 4 * x.shape[1], w.ctypes.data, x.shape[1],
        0, 0, w.shape[0], out.ctypes.data, 4 * out.shape[1],
    )  # fmt: skip
    return out


def _cpu_phrase_tree() -> Case:
    """Return a lone sequence's look-ups: 8 nodes after 400 tokens, over 200,000 tokens that repeat each other."""
    dice, vocab = np.random.default_rng(1), 49152
    sentences = dice.integers(0, vocab, (2000, 10))
    tables, text = phrase_tables(sentences[dice.integers(0, 2000, 20000)].ravel(), vocab), sentences[:40].ravel()
    listed, fresh = text.tolist(), text.astype(np.int32)
    tokens, seen = np.empty((1, len(text)), np.int32), np.zeros((1, vocab // 64 + 1), np.uint64)
    asked = np.array([[0, len(text), 8]])

    def reference() -> torch.Tensor:
        return torch.tensor(phrase_tree_reference(tables, listed, 0, 8))

    def run() -> torch.Tensor:
        out = room(1, 8)
        phrase_trees(tables, OwnTexts(tokens, seen, np.zeros((1, 2), np.int64)), asked, fresh, out)
        return torch.from_numpy(np.column_stack([out.nodes, out.chances])[: out.ends[0]])

    return Case("phrase_tree", "8 nodes", reference, CPU, run)


def _cpu_merged_trees() -> Case:
    """Return the merge of 64 sequences' drafts, three of 8 tokens each."""
    dice, trees, each, size = np.random.default_rng(1), 64, 3, 8
    tokens = dice.integers(0, 4, (trees, each, size))
    parents = np.minimum(dice.integers(0, 2 * size, tokens.shape), np.arange(size))
    chances = dice.random(tokens.shape)
    ranks = np.tile(np.arange(each), trees)
    nodes, drafts = np.arange(trees * each + 1) * size, np.arange(trees + 1) * each
    given = Drafts(tokens.ravel(), parents.ravel(), chances.ravel(), nodes, ranks, drafts)

    def reference() -> torch.Tensor:
        listed = [
            [[*zip(*one, strict=True)] for one in zip(*own, strict=True)]
            for own in zip(tokens.tolist(), parents.tolist(), chances.tolist(), strict=True)
        ]
        merged = [merged_tree_reference(own, range(each), 63) for own in listed]
        return torch.tensor([survival for tree in merged for survival in tree.survival], dtype=torch.float64)

    def run() -> torch.Tensor:
        ends, places = np.empty(trees, np.int64), np.empty((tokens.size, 3), np.int64)
        survival = merged_trees(given, 63, ends, places, np.empty(tokens.size, np.int64))
        return torch.from_numpy(survival[: ends[-1]])

    return Case("merged_trees", "64 of three drafts", reference, CPU, run)


def _cpu_best_lengths() -> Case:
    """Return the search over the draft lengths of 64 sequences, of up to 8 tokens each."""
    dice, sequences, longest = np.random.default_rng(1), 64, 8
    survivals = dice.uniform(0.4, 0.95, (sequences, longest)).cumprod(1)
    zeros, rows = np.zeros(sequences), np.arange(sequences * longest + 1)
    drafting_s = 1e-4 * np.arange(8)[:, None] * np.arange(longest + 1)
    caps = np.array([1, 2, 3, 4, 6, 8])
    ends = np.arange(sequences + 1) * longest
    search = Search(survivals.ravel(), ends, zeros + 1.0, zeros, zeros, 5e-3 + 1e-5 * rows, drafting_s, caps)

    def reference() -> torch.Tensor:
        return torch.tensor(best_lengths_reference(search, 0.0, 0.0)[0])

    def run() -> torch.Tensor:
        best = np.empty(sequences, np.int64)
        best_lengths(search, 0.0, 0.0, best)
        return torch.from_numpy(best)

    return Case("best_lengths", "64 of up to 8", reference, CPU, run)


def _cpu_attention() -> Iterator[Case]:
    """Yield one key head's three query heads on the rows of a draft, behind a full split of keys."""
    rows, fold, depth, page = 8, 3, 64, 32
    prefix = SPLIT - rows
    q, k, v = torch.randn(rows, fold, depth), torch.randn(SPLIT, depth), torch.randn(SPLIT, depth)
    mask = torch.arange(SPLIT) <= prefix + torch.arange(rows)[:, None]
    pages = np.arange(SPLIT // page)
    keys = k.view(-1, page, depth).transpose(1, 2).contiguous().numpy()
    arguments = (q.numpy(), prefix, pages, keys, v.numpy(), page, np.empty((rows * fold, SPLIT), np.float32))
    sums, stats = np.empty((rows * fold, depth), np.float32), np.empty((rows * fold, 2), np.float32)
    yield Case(
        "cpu.attention",
        f"{rows} rows of {fold} heads of {depth}, {SPLIT} keys",
        lambda: F.scaled_dot_product_attention(q.transpose(0, 1), k[None], v[None], attn_mask=mask, scale=1.0),
        CPU,
        lambda: _attend(*arguments, sums, stats, out=np.empty_like(sums)),
        k.nbytes + v.nbytes,
    )


@entry
def _attend(
    q: np.ndarray,
    prefix: int,
    pages: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    page: int,
    scores: np.ndarray,
    sums: np.ndarray,
    stats: np.ndarray,
    out: np.ndarray,
) -> np.ndarray:
    rows, fold, depth = q.shape
    attend(
        q.ctypes.data, rows, fold, prefix, 0, prefix + rows, pages, keys.ctypes.data, values.ctypes.data,
        4 * depth * page, page, depth, scores.ctypes.data, sums.ctypes.data, stats.ctypes.data,
    )  # fmt: skip
    for line in range(rows * fold):
        join(
            sums.ctypes.data + 4 * line * depth, stats.ctypes.data + 8 * line, 1,
            0, 0, depth, out.ctypes.data + 4 * line * depth,
        )  # fmt: skip
    return out


def _tokens(device: torch.device, num_rows: int, vocab_size: int) -> Iterator[Case]:
    """Yield what is done with a batch of logits."""
    logits = torch.randn(num_rows, vocab_size, dtype=torch.bfloat16) * 3  # as a model of 16 bits gives them
    here = logits.to(device)
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
        rows = [replace(row, position=position) for position in range(num_rows)]
        choices = pack_rows(rows, vocab_size, device)
        yield Case(
            "target_token_batch",
            name,
            partial(target_token_batch_reference, logits, rows),
            CPU,  # it makes small tensors there
            partial(target_token_batch, here, choices),
            logits.nbytes,
        )
    rows = [kinds["sampled"]] * num_rows
    yield Case(
        "top_logprobs",
        "20 of each row",
        lambda: top_logprobs_reference(logits, rows, 20),
        CPU,
        lambda: top_logprobs(here, None, 20),
        logits.nbytes,
    )


def _layers(device: torch.device, rows: int) -> Iterator[Case]:
    """Yield what is between two attentions of an 8B model; a small one's without a GPU."""
    dtype, d, depth = (torch.bfloat16, 4096, 128) if device != CPU else (torch.float32, 512, 16)
    x, residual, out = torch.randn(3, rows, d, dtype=dtype, device=device).unbind()
    norm = (x, residual, residual[0].clone(), 1e-5, out)
    name = f"{rows} rows of {d}"
    yield Case(
        "rms_norm", name, lambda: add_rms_norm_reference(*norm), device, lambda: add_rms_norm(*norm), 2 * x.nbytes
    )
    gate_up, gated = (torch.randn(rows, n * 7 * d // 2, dtype=dtype, device=device) for n in (2, 1))
    yield Case(
        "gated_silu",
        f"{rows} rows of {7 * d // 2}",
        lambda: gated_silu_reference(gate_up, gated),
        device,
        lambda: gated_silu(gate_up, gated),
        gate_up.nbytes,
    )
    weight = torch.randn(3 * d // 2, d, dtype=dtype, device=device)
    qkv = fixed_linear_reference(x, weight)
    products = partial(fixed_linear_reference, x, weight), partial(fixed_linear, x, weight)
    yield Case("fixed_linear", f"{rows} rows, {d} -> {len(weight)}", products[0], device, products[1], weight.nbytes)
    ints = torch.arange(rows, device=device).int()
    cos, sin = torch.randn(2, rows, depth, device=device).unbind()
    k, v = torch.zeros(2, rows, 16, 8, depth, dtype=dtype, device=device).unbind()
    store = (qkv, ints, 16 * ints, cos, sin, k, v, 32)
    yield Case(
        "rotary_store",
        f"{rows} rows, {d // depth} heads of {depth} on 8",
        lambda: rotary_store_reference(*store),
        device,
        lambda: rotary_store(*store),
        qkv.nbytes,
    )


def _pages(device: torch.device) -> Iterator[Case]:
    """Yield attention over pages, and what keeps them in order: an 8B model's heads."""
    dtype = torch.bfloat16 if device != CPU else torch.float32
    tiling = VERIFY if device != CPU else FLOAT32
    prefix, prompt = (2048, 1024) if device != CPU else (128, 64)  # the reference goes row by row
    for name, spans, how in (
        (f"8 sequences of {prefix}, 8 new rows each", [(prefix, 8)] * 8, tiling),
        (f"a prompt of {prompt}", [(0, prompt)], PREFILL),
    ):
        batch, num_pages = _batch(spans, device)
        rows, prefixes = (np.array(numbers) for numbers in zip(*((new, old) for old, new in spans), strict=True))
        firsts = np.cumsum(rows) - rows
        work = work_list(firsts, rows, prefixes, rows.sum(), 4, how.rows, how.split_keys).on_device(device)
        q = torch.randn(sum(rows for _, rows in spans), 32, 128, dtype=dtype, device=device)
        pages = torch.randn(2, num_pages, 16, 8, 128, dtype=dtype, device=device)
        yield Case(
            "ragged_attention",
            name,
            partial(ragged_attention_reference, q, pages[0], pages[1], batch, 128**-0.5),
            device,
            partial(ragged_attention, q, pages[0], pages[1], batch, work, 128**-0.5, tiling=how),
            pages.nbytes,
        )
    batch, num_pages = _batch([(2048, 64)] * 4, device)
    cache = torch.randn(2, 4, num_pages, 16, 8, 128, dtype=dtype, device=device)
    path = torch.arange(0, 16, 2, device=device).int().repeat(4, 1)
    lengths = torch.full((4,), 8, device=device).int()
    commit = (cache[0], cache[1], batch.blocks, batch.prefix, path, lengths)
    yield Case(
        "kv_commit", "4 paths of 8, 4 layers", lambda: kv_commit_reference(*commit), device, lambda: kv_commit(*commit)
    )


def _batch(spans: list[tuple[int, int]], device: torch.device) -> tuple[Batch, int]:
    """Return (a batch of causal (prefix, new rows), pages it needs), pages of 16 in no order."""
    rows = torch.tensor([new for _, new in spans])
    each = max(-(-(prefix + new) // 16) for prefix, new in spans)
    integers = {
        "first_row": rows.cumsum(0) - rows,
        "num_rows": rows,
        "prefix": torch.tensor([prefix for prefix, _ in spans]),
        "blocks": torch.randperm(each * len(spans)).view(len(spans), each),
    }
    batch = Batch(
        **{name: x.int().to(device) for name, x in integers.items()},
        ancestors=None,
        depth=None,
    )
    return batch, each * len(spans)
