"""Test the choice of tokens; run by ../test_device.py, in a process of its own."""

import random

import pytest
import torch

from kernels.sampling.choices import pack_rows
from kernels.sampling.logit_blocks import shaped_rows
from kernels.sampling.target_token import Choice, Row
from kernels.sampling.target_token_batch import target_token_batch, target_token_batch_reference
from tests.kernels.device.places import DEVICE, DTYPES
from tests.kernels.device.rows import FILTERS, VOCABULARIES, on_the_edge, row

SIZES = {61: [(1, 1.0), (5, 3.0)], 1000: [(2, 0.3), (4, 3.0)], 2049: [(7, 1.0)]}  # (rows, spread)


def check(logits, rows):
    """Check the tokens against the reference's but on the edge of top-p; return the kernel's
    answer."""
    found = target_token_batch(logits.to(DEVICE), pack_rows(rows, logits.shape[1], DEVICE))
    tokens, logprobs = target_token_batch_reference(logits, rows)
    sure = [not on_the_edge(y, r.choice) for y, r in zip(shaped_rows(logits, rows), rows, strict=True)]
    assert sum(sure) >= len(rows) * 0.7
    assert found.tokens.cpu()[sure].tolist() == tokens[sure].tolist()
    torch.testing.assert_close(found.logprobs.cpu()[sure], logprobs[sure], rtol=1e-5, atol=1e-5)
    return found


def random_logits(num_rows, vocab_size, spread, dtype=torch.float32):
    generator = torch.Generator().manual_seed(num_rows + vocab_size)
    return (torch.randn(num_rows, vocab_size, generator=generator) * spread).to(dtype)


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_tokens_equal_the_references(vocab_size, filters):
    draw = random.Random(vocab_size)
    for num_rows, spread in SIZES[vocab_size]:
        check(random_logits(num_rows, vocab_size, spread), [row(draw, vocab_size, filters) for _ in range(num_rows)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_tokens_of_edited_rows_equal_the_references(vocab_size, dtype):
    draw = random.Random(vocab_size)
    for num_rows, spread in SIZES[vocab_size]:
        rows = [row(draw, vocab_size, edited=True) for _ in range(num_rows)]
        check(random_logits(num_rows, vocab_size, spread, dtype), rows)


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1.0])
def test_edits_of_many_blocks(temperature):
    """A history so long that its edits fill more than a block, beside a row without any."""
    rows = [
        Row(Choice(temperature, 1.0, 0, 0.0, 3), 5, counts=dict.fromkeys(range(4000), 1), presence_penalty=1.0),
        Row(Choice(temperature, 0.9, 0, 0.0, 3), 5),
    ]
    check(random_logits(2, 4100, 1.0), rows)


def test_ties_go_to_the_lowest_id():
    """In one block, across blocks, and between the vocabulary and the edits."""
    greedy = Choice(0.0, 1.0, 0, 0.0, 0)
    for ids in ([3, 40], [40, 2060], [2050, 4000]):
        for bias in ({}, {ids[0]: 2.0}, {ids[1]: 2.0}, dict.fromkeys(ids, 2.0)):
            logits = torch.zeros(1, 4100)
            logits[0, [i for i in ids if i not in bias]] = 2.0
            assert check(logits, [Row(greedy, 0, bias=bias)]).tokens.item() == ids[0]


@pytest.mark.parametrize(("top_k", "top_p"), [(2, 1.0), (0, 0.1), (2, 0.3), (2, 0.999), (4, 0.6)])
def test_equal_tokens_stay_or_go_together(top_k, top_p):
    logits = torch.zeros(10, 61)
    logits[:, [5, 17, 60]] = 3.0
    rows = [Row(Choice(1.0, top_p, top_k, 0.0, seed), 3) for seed in range(10)]
    tokens = check(logits, rows).tokens.tolist()
    assert {5, 17, 60} <= set(tokens)
    assert (set(tokens) == {5, 17, 60}) == (top_k < 4)


def test_fewer_allowed_than_top_k():
    logits = random_logits(8, 2049, 2.0)
    rows = [Row(Choice(1.0, 0.8, 20, 0.0, seed), 3, allowed=(7, 2048, 11)) for seed in range(8)]
    assert set(check(logits, rows).tokens.tolist()) <= {7, 11, 2048}


def test_passes_are_few():
    """Greedy and free rows are read once; a filtered one as a rule twice."""
    logits = random_logits(10, 1000, 4.0)
    free = [Row(Choice(t, 1.0, 0, 0.0, 1), position) for t in (0.0, 1.0) for position in range(5)]
    assert check(logits, free).passes.tolist() == [0] * 10
    filtered = [Row(Choice(1.0, 0.95, 0, 0.01, 1), position) for position in range(10)]
    passes = check(logits, filtered).passes
    assert passes.min() == 1 and passes.float().mean() < 2


def test_rows_that_lie_apart_and_the_input_as_it_was():
    wide = random_logits(3, 1100, 1.0)
    before = wide.clone()
    rows = [row(random.Random(i), 1000, edited=True) for i in range(3)]
    check(wide[:, :1000], rows)
    assert torch.equal(wide, before)
