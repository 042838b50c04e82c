"""Test that rows keep their bits: alone, in a batch, as a tree node, at any chunking; and that they
are transformers'.
"""

import itertools
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.activations import ACT2FN

from app.engine.cpu.choose_forward import choose_forward
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.hooked import WholeVectors
from app.engine.cpu.load import load
from app.engine.cpu.runner import ModelRunner
from app.errors import ModelRefused
from app.state import CachedSequence
from kernels.cpu.simd import LANES
from tests import fakes
from tests.app.engine.test_packing import path_to, trees
from tests.fakes import FAMILIES, PAGE_TOKENS, VOCAB

REFUSED = ("falcon", "bloom")
SERVED = [family for family in FAMILIES if family not in REFUSED]


@cache
def served(family: str) -> ModelRunner:
    """Return a runner that tests share: each gives its pages back."""
    return fakes.served(family, pages=96)


@cache
def plain(family: str) -> nn.Module:
    return fakes.tiny(family)


def tokens(count: int, salt: int = 0) -> list[int]:
    return [(i * i * 7 + i * 3 + salt) % VOCAB for i in range(count)]


def step(runner: ModelRunner, *works) -> list[torch.Tensor | None]:
    """Reserve, run, and move the caches on to the entries' last tokens; return the rows of each
    final entry."""
    assert all(runner.try_reserve(work) for work in works)
    logits = runner.forward(list(works))
    for work in works:
        if not len(work.tree):
            runner.accept(work, [])
    return [None if rows is None else rows.rows for rows in logits]


def read(runner: ModelRunner, state: CachedSequence, *cuts: int) -> torch.Tensor:
    """Read the sequence in pieces that end at the cuts and at its end; return the last token's row."""
    rows = None
    for start, end in itertools.pairwise([state.cached, *cuts, len(state.tokens)]):
        if start < end:
            (rows,) = step(runner, fakes.work(state, start, end))
    return rows[0]


def cache_of(runner: ModelRunner, state: CachedSequence) -> torch.Tensor:
    """Return keys and values of all cached tokens, (2, cached, ...)."""
    size = runner.kv.page_tokens
    pages = torch.tensor([state.pages[i // size] for i in range(state.cached)])
    offsets = torch.arange(state.cached) % size
    keys, values = runner.kv.keys, runner.kv.values
    if isinstance(runner.model, FusedForward):
        places = keys.shape[:3]
        keys = keys.reshape(*places, size // LANES, -1, LANES).transpose(3, 4).flatten(4)
        values = values.reshape(*places, -1, size, LANES).transpose(3, 4).flatten(4)
    return torch.stack([keys.permute(1, 4, 0, 2, 3)[pages, offsets], values.permute(1, 3, 0, 2, 4)[pages, offsets]])


def alone(runner: ModelRunner, ids: list[int], *cuts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (row of the last token, cache) of a sequence that is alone in its batches."""
    state = fakes.cached(ids)
    row = read(runner, state, *cuts)
    found = cache_of(runner, state)
    runner.release(state)
    return row, found


@pytest.mark.parametrize("family", SERVED)
def test_logits_are_those_of_transformers(family):
    ids = tokens(70)
    with torch.inference_mode():
        expected = plain(family)(torch.tensor([ids])).logits[0]
    runner, state = served(family), fakes.cached(ids)
    for end in (1, 2, 17, 40, 69, 70):
        work = fakes.work(fakes.cached(ids[:end]), 0)
        (rows,) = step(runner, work)
        torch.testing.assert_close(rows[0], expected[end - 1], rtol=1e-4, atol=1e-4)
        runner.release(work.sequence)
    torch.testing.assert_close(read(runner, state, 3, 33, 50), expected[-1], rtol=1e-4, atol=1e-4)
    runner.release(state)


@pytest.mark.parametrize("family", SERVED)
def test_greedy_tokens_are_those_of_transformers(family):
    records = [fakes.record(tokens(count, salt=count), 24, request_id=f"r{count}") for count in (3, 21, 40)]
    expected = [fakes.alone(plain(family), one.prompt_ids, 24) for one in records]
    assert len({token for text in expected for token in text}) > 8, "a text worth comparing"
    assert fakes.texts(fakes.pipeline(served(family)), *records) == expected


@cache
def one_by_one(family: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Read seventy tokens, each in a step of its own; return (row, cache) as `alone`."""
    return alone(served(family), tokens(70), *range(1, 70))


@pytest.mark.parametrize("family", SERVED)
@settings(max_examples=3, deadline=None, derandomize=True)
@given(st.sets(st.integers(1, 69), max_size=6))
def test_bits_are_the_same_at_any_chunking(family, cuts):
    row, kv = one_by_one(family)
    chunked_row, chunked_kv = alone(served(family), tokens(70), *sorted(cuts))
    assert torch.equal(chunked_row, row)
    assert torch.equal(chunked_kv, kv)


@pytest.mark.parametrize("family", SERVED)
@settings(max_examples=3, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=2, max_size=7))
def test_bits_are_the_same_in_any_batch(family, sizes):
    """Sequences of (cached, new) tokens read on together, each with the row and the cache it has
    alone."""
    runner = served(family)
    states = [fakes.cached(tokens(cached + new, salt=i)) for i, (cached, new) in enumerate(sizes)]
    step(runner, *(fakes.work(state, 0, cached) for state, (cached, _) in zip(states, sizes, strict=True)))
    together = step(runner, *(fakes.work(state, state.cached) for state in states))
    for state, rows in zip(states, together, strict=True):
        row, kv = alone(runner, state.tokens)
        assert torch.equal(rows[0], row)
        assert torch.equal(cache_of(runner, state), kv)
        runner.release(state)


def check_tree(family: str, length: int, drafts, tail: int = 1) -> None:
    """Check every node's row, and after any node's acceptance the cache and the rows to come,
    against plain decoding."""
    runner, ids = fakes.runner(served(family).model), tokens(length)
    others = [fakes.cached(tokens(count, salt=9)) for count in (5, 40)]
    for node in sorted({0, *range(1, len(drafts) + 1, 1 + len(drafts) // 12), len(drafts)}):
        path = path_to(drafts, node)
        spoken = [drafts.tokens[i - 1] for i in path]
        row, _ = alone(runner, ids + spoken)
        state = fakes.cached(ids)
        read(runner, state, length - tail)
        state.cached = max(0, length - tail)
        work = fakes.work(state, state.cached, drafts=drafts)
        _, rows, _ = step(runner, fakes.work(others[0], 0), work, fakes.work(others[1], 0))
        assert torch.equal(rows[node], row), f"node {node} of {drafts.parents}"
        runner.accept(work, path)
        state.tokens += [*spoken, 7, 8]
        assert state.cached == length + len(path)
        following, kv = alone(runner, state.tokens)
        assert torch.equal(read(runner, state), following), f"after node {node} of {drafts.parents}"
        assert len(state.pages) == -(-state.cached // PAGE_TOKENS), "no page is held in vain"
        assert torch.equal(cache_of(runner, state), kv)
        for one in (state, *others):
            runner.release(one)
    assert runner.pool.num_free == runner.pool.num_pages


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(1, 40), trees(26), st.integers(1, 4))  # deep enough to cross a page or two
def test_bits_are_the_same_in_any_tree_and_after_it(length, drafts, tail):
    check_tree("llama", length, drafts, min(tail, length))


@pytest.mark.parametrize("family", [family for family in SERVED if family != "llama"])
def test_bits_are_the_same_in_trees_of_every_family(family):
    check_tree(family, 2 * PAGE_TOKENS - 3, fakes.tree([5, 6, 7, 8, 9, 10, 11, 12, 13], [0, 0, 2, 3, 3, 5, 6, 1, 7]))


@pytest.mark.parametrize("length", range(PAGE_TOKENS - 6, PAGE_TOKENS + 2))
def test_a_branch_of_a_branch_may_begin_on_another_page(length):
    """1-2-3-4-5 is the main branch, 6-7-8-9 leaves it at once, and 10-11 leaves that one three tokens later."""
    parents = [0, 1, 2, 3, 4, 0, 6, 7, 8, 8, 10]
    check_tree("llama", length, fakes.tree(list(range(20, 31)), parents))


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "sigmoid", "silu"])
def test_activations_keep_rows_bits_at_any_width_and_threads(name):
    activation = WholeVectors(ACT2FN[name])
    for columns in (1, 48, 61, 1056, 40_000):
        x = 3 * torch.randn(3, 37 if columns < 40_000 else 1, columns, generator=torch.Generator().manual_seed(columns))
        torch.testing.assert_close(activation(x), ACT2FN[name](x))
        rows = x.view(-1, columns)
        expected = torch.cat([activation(row[None]) for row in rows])
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                assert torch.equal(activation(x).view(-1, columns), expected)
                assert torch.equal(torch.cat([activation(part) for part in rows.split(7)]), expected)
        finally:
            torch.set_num_threads(1)


@pytest.mark.parametrize("family", REFUSED)
def test_models_that_ignore_the_attention_interface_are_refused(family):
    with pytest.raises(ModelRefused, match="attention interface"):
        choose_forward(fakes.tiny(family))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelRefused, match="holds no weights"):
        load(tmp_path)


def test_a_saved_model_is_loaded_as_it_was(tmp_path):
    plain("llama").save_pretrained(tmp_path)
    runner = fakes.runner(load(tmp_path))
    expected, _ = alone(served("llama"), tokens(20))
    assert torch.equal(read(runner, fakes.cached(tokens(20))), expected)
