"""Rows dropped in the middle of a pass: the others keep their bits, and dropped ones are not read."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.config import Activations, WeightsAs
from app.engine.cpu.choose_forward import choose_forward
from app.engine.cpu.forward import Forward
from app.engine.cpu.runner import CPURows, ModelRunner
from app.engine.early_exit.controller import ExitReport
from app.engine.early_exit.rows import Checkpoint
from app.request import Sampling
from app.stages.verify import verify
from app.state import BatchEntry, Tree
from tests import fakes
from tests.app.engine.test_packing import path_to, trees
from tests.fakes import VOCAB

LAYERS = 4


class FixedPredictor:
    """A predictor of fixed answers: by checkpoint, one for each node in the order of its calls."""

    def __init__(self, rejects: dict[int, list[bool]]) -> None:
        self.checkpoints = tuple(Checkpoint(layer, 1.0 - layer / LAYERS) for layer in sorted(rejects))
        self._rejects = rejects
        self.seen: list[tuple[int, np.ndarray, np.ndarray]] = []

    def rejects(self, layer, states, tokens):
        self.seen.append((layer, states.copy(), tokens.copy()))
        return np.resize(np.array(self._rejects[layer]), len(tokens))


@cache
def tiny(activations: Activations = "float32", weights: WeightsAs = "stored") -> Forward:
    return choose_forward(fakes.tiny(num_hidden_layers=LAYERS), weights, activations=activations)


def works_of(batch: list[tuple[int, Tree]], runner: ModelRunner, *, may_exit: bool = False) -> list[BatchEntry]:
    """Return entries of sequences of so many tokens, the last two uncached, each with a tree."""
    works = []
    for i, (length, drafts) in enumerate(batch):
        state = fakes.cached([(7 * i + 3 * j) % VOCAB for j in range(length)])
        start = max(0, length - 2)
        if start:
            prompt = fakes.work(state, 0, start)
            assert runner.try_reserve(prompt)
            runner.forward([prompt])
        work = fakes.work(state, start, drafts=drafts)
        work.may_exit = may_exit
        assert runner.try_reserve(work)
        works.append(work)
    return works


def next_rows(runner: ModelRunner, works: list[BatchEntry], paths: list[list[int]]) -> list[torch.Tensor]:
    """Accept a path of each tree; return the logits after two tokens more, (V,) each."""
    found = []
    for work, path in zip(works, paths, strict=True):
        runner.accept(work, path)
        sequence = work.sequence
        sequence.tokens += [*(work.tree.tokens[node - 1] for node in path), 5, 6]
        following = fakes.work(sequence, sequence.cached)
        assert runner.try_reserve(following)
        (logits,) = runner.forward([following])
        runner.accept(following, [])
        found.append(logits.rows[0].clone())
    return found


batches = st.lists(st.tuples(st.integers(1, 40), trees(14)), min_size=1, max_size=4)
answers = st.dictionaries(
    st.integers(1, LAYERS - 1), st.lists(st.booleans(), min_size=1, max_size=20), min_size=1, max_size=2
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from([("float32", "stored"), ("float32", "q8_0"), ("int8", "q8_0")]), batches, answers, st.data())
def test_kept_rows_keep_their_bits_and_dropped_ones_are_not_read(kind, batch, rejects, data):
    plain, pruning = (fakes.runner(tiny(*kind), pages=128) for _ in range(2))
    expected_works = works_of(batch, plain)
    works = works_of(batch, pruning, may_exit=True)
    expected = plain.forward(expected_works)
    pruning.predictor = FixedPredictor(rejects)
    found = pruning.forward(works)
    paths = []
    for work, whole, rest in zip(works, expected, found, strict=True):
        kept = [node for node in range(1 + len(work.tree)) if node not in work.pruned]
        assert all(work.tree.parents[node - 1] in kept for node in kept if node), "a node stays with its parent alone"
        assert len(rest.rows) == len(kept)
        for node in kept:
            assert torch.equal(rest.rows[rest.row(node)], whole.rows[node])
            assert rest.greedy[rest.row(node)] == whole.greedy[node]
            assert rest.state(node) == whole.state(node)
        paths.append(path_to(work.tree, data.draw(st.sampled_from(kept))))
    pruning.predictor = None
    after = next_rows(pruning, works, paths)
    for a, b in zip(after, next_rows(plain, expected_works, paths), strict=True):
        assert torch.equal(a, b)


def test_a_predictor_sees_the_state_of_each_nodes_parent():
    runner = fakes.runner(tiny())
    drafts = fakes.tree([20, 21, 22, 23], [0, 1, 0, 2])
    (first, work) = works_of([(9, Tree()), (5, drafts)], runner, may_exit=True)
    predictor = runner.predictor = FixedPredictor({1: [False], 3: [False]})
    runner.forward([first, work])
    (layer, states, tokens), (later, deeper, _) = predictor.seen
    assert (layer, later, tokens.tolist()) == (1, 3, [20, 21, 22, 23])
    assert np.array_equal(states[0], states[2]) and not np.array_equal(states[0], states[1])
    assert not np.array_equal(states[0], deeper[0])
    assert not work.pruned


def test_a_rejected_node_leaves_with_its_subtree():
    runner = fakes.runner(tiny())
    prompt = list(range(6))
    (text,) = fakes.texts(fakes.pipeline(fakes.runner(tiny())), fakes.record(prompt, 4))
    drafts = fakes.tree([*text[:3], (text[0] + 1) % VOCAB], [0, 1, 2, 0])
    (work,) = works_of([(6, drafts)], runner, may_exit=True)
    work.sequence.tokens[:] = prompt
    work.tokens, work.start, work.sequence.cached = prompt, 0, 0
    runner.predictor = FixedPredictor({2: [False, True, False, True]})
    logits = runner.forward([work])
    assert work.pruned == {2, 3, 4}
    (verdict,) = verify([work], logits)
    assert (verdict.path, verdict.tokens, verdict.cut) == ([1], text[:2], 2)


def test_what_left_is_reported_and_not_looked_at_again():
    runner = fakes.runner(tiny())
    (work,) = works_of([(6, fakes.tree([20, 21], [0, 0]))], runner, may_exit=True)
    predictor = runner.predictor = FixedPredictor({1: [True, False], 3: [True]})
    runner.forward([work])
    assert [tokens.tolist() for _, _, tokens in predictor.seen] == [[20, 21], [21]]
    assert work.pruned == {1, 2}
    assert list(runner.exits.left) == [(0.75, 4, 3), (0.25, 3, 2)]
    assert runner.exits.took_s > 0.0
    runner.predictor = None
    (work,) = works_of([(6, Tree())], runner)
    runner.forward([work])
    assert runner.exits == ExitReport()


def test_only_trees_that_may_exit_are_looked_at():
    runner = fakes.runner(tiny())
    works = works_of([(9, Tree()), (5, fakes.tree([20, 21]))], runner)
    works[0].may_exit = True
    predictor = runner.predictor = FixedPredictor({2: [True]})
    first, second = runner.forward(works)
    assert (len(first.rows), len(second.rows)) == (1, 3)
    assert predictor.seen == []


def test_logits_of_a_pruned_node_cannot_be_asked_for():
    logits = CPURows(torch.zeros(2, 3), [1, 2], None, {0: 0, 2: 1})
    assert logits.token(2, 5, Sampling(), [0]) == 2
    with pytest.raises(KeyError):
        logits.token(1, 5, Sampling(), [0])
