from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.cpu.hooked import HookedForward
from app.engine.cpu.runner import CPURows
from app.errors import ModelRefused
from app.request import Sampling
from app.state import Tree
from kernels.sampling.target_token import Choice, Row, shaped, target_token_reference
from tests import fakes
from tests.fakes import PAGE_TOKENS, VOCAB

BUSHY = fakes.tree(range(20, 31), [0, 1, 2, 3, 4, 0, 6, 7, 8, 8, 10])


def test_chunks_have_no_logits_and_final_entries_a_row_a_node():
    runner = fakes.served()
    chunk, plain, drafted = fakes.cached(range(30)), fakes.cached(range(5)), fakes.cached(range(9))
    works = [fakes.work(chunk, 0, 12), fakes.work(plain, 0), fakes.work(drafted, 0, drafts=BUSHY)]
    assert all(runner.try_reserve(work) for work in works)
    none, one, many = runner.forward(works)
    assert none is None
    assert one.rows.shape == (1, VOCAB)
    assert many.rows.shape == (1 + len(BUSHY), VOCAB)
    assert many.greedy == many.rows.argmax(-1).tolist()


def test_a_batch_of_chunks_only_has_no_logits_at_all():
    runner, state = fakes.served(), fakes.cached(range(30))
    work = fakes.work(state, 0, 12)
    assert runner.try_reserve(work)
    assert runner.forward([work]) == [None]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    pages=st.integers(2, 9),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    with_tree=st.booleans(),
)
def test_a_reservation_is_whole_or_nothing(pages, lengths, with_tree):
    runner = fakes.runner(fakes.served().model, pages=pages)
    states = [fakes.cached([1] * length) for length in lengths]
    for state in states:
        work = fakes.work(state, 0, drafts=BUSHY if with_tree else Tree())
        free = runner.pool.num_free
        if runner.try_reserve(work):
            held = [*state.pages, *(page for fork in work.forks for page in fork.pages)]
            assert len(set(held)) == len(held) == free - runner.pool.num_free
        else:
            assert (len(state.pages), work.forks, runner.pool.num_free) == (0, [], free)


@pytest.mark.parametrize("node", range(len(BUSHY) + 1))
def test_after_acceptance_only_the_committed_tokens_hold_pages(node):
    runner, state = fakes.served(), fakes.cached([1] * (2 * PAGE_TOKENS - 2))
    work = fakes.work(state, 0, drafts=BUSHY)
    assert runner.try_reserve(work)
    path = [node] if node else []
    while path and work.tree.parents[path[0] - 1]:
        path.insert(0, work.tree.parents[path[0] - 1])
    runner.accept(work, path)
    assert state.cached == len(state.tokens) + len(path)
    assert len(state.pages) == -(-state.cached // PAGE_TOKENS)
    assert runner.pool.num_free == runner.pool.num_pages - len(state.pages)
    runner.release(state)
    assert (state.cached, len(state.pages), runner.pool.num_free) == (0, 0, runner.pool.num_pages)


def test_an_invalidated_batch_entry_leaves_zeros():
    runner, state = fakes.served(), fakes.cached([1] * (2 * PAGE_TOKENS - 2))
    work = fakes.work(state, 0, drafts=BUSHY)
    assert runner.try_reserve(work)
    runner.forward([work])
    assert runner.kv.keys.any() and runner.kv.values.any()
    runner.invalidate(work)
    assert not runner.kv.keys.any() and not runner.kv.values.any()
    assert (state.cached, len(state.pages), runner.pool.num_free) == (0, 0, runner.pool.num_pages)


def test_greedy_tokens_come_without_reading_the_row_again():
    logits = CPURows(torch.tensor([[0.0, 3.0, 1.0]]), [2])
    assert logits.token(0, 5, Sampling(), [0]) == 2, "takes the argmax that came with the rows"


@pytest.mark.parametrize(
    "extra",
    [{}, {"frequency_penalty": 1.5}, {"presence_penalty": -1.0}, {"repetition_penalty": 1.4}, {"logit_bias": {3: 9.0}}]
    + [{"allowed_token_ids": (4, 9, 11)}, {"allowed_token_ids": (0,), "frequency_penalty": 2.0}],
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_token_follows_the_definition(extra, temperature):
    rows = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(temperature=temperature, top_p=0.9, top_k=20, min_p=0.01, seed=77, **extra)
    logits, history = CPURows(rows, rows.argmax(-1).tolist()), [3, 3, 9, int(rows[1].argmax())]
    choice = Choice(temperature, 0.9, 20, 0.01, 77)
    row = Row(
        choice,
        12,
        Counter(history),
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        repetition_penalty=sampling.repetition_penalty,
        bias=sampling.logit_bias,
        allowed=sampling.allowed_token_ids,
    )
    expected = target_token_reference(shaped(rows[1], row), choice, position=12)
    assert logits.token(1, 12, sampling, history) == expected


def test_a_model_that_ignores_logits_to_keep_is_refused():
    model = fakes.tiny()
    forward = model.forward
    model.forward = lambda logits_to_keep, **rest: forward(logits_to_keep=0, **rest)
    runner = fakes.runner(HookedForward(model))
    work = fakes.work(fakes.cached(range(5)), 0)
    assert runner.try_reserve(work)
    with pytest.raises(ModelRefused, match="logits_to_keep"):
        runner.forward([work])


def test_a_model_whose_layers_bypass_the_interface_is_refused():
    model = fakes.tiny()
    model.config.num_hidden_layers += 1
    runner = fakes.runner(HookedForward(model))
    work = fakes.work(fakes.cached(range(5)), 0)
    assert runner.try_reserve(work)
    with pytest.raises(ModelRefused, match="2 of 3 layers"):
        runner.forward([work])
