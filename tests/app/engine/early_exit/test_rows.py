"""Rows dropped in the middle of a pass: the others keep their bits, and dropped ones are not read."""

import math
import time
from functools import cache
from typing import get_args

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
from app.engine.early_exit.decisions import AsyncDecisions, StepDecisions
from app.engine.early_exit.rows import Checkpoint, Decisions, RowPruner
from app.request import Sampling
from app.stages.verify import verify
from app.state import BatchEntry, Tree
from tests import fakes
from tests.app.engine.test_packing import path_to, trees
from tests.fakes import VOCAB

LAYERS = 4


class FixedPredictor:
    """A predictor of fixed chances: by checkpoint, one for each node in the order of its calls."""

    def __init__(self, chances: dict[int, list[float]]) -> None:
        self.layers = tuple(sorted(chances))
        self._chances = chances
        self.asked: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]] = []

    def chances(self, layer, states, tokens, priors):
        self.asked.append((layer, states.copy(), tokens.copy(), priors.copy()))
        return np.resize(np.array(self._chances[layer]), len(tokens))

    def in_step(self) -> Decisions:
        return StepDecisions(self, tuple(Checkpoint(layer, layer, 1.0) for layer in self.layers))

    def beside(self, late: int) -> Decisions:
        found = tuple(Checkpoint(layer, layer + late, 1.0) for layer in self.layers if layer + late < LAYERS)
        return AsyncDecisions(self, found, 0.0)


@cache
def tiny(activations: Activations = "float32") -> Forward:
    weights: WeightsAs = "stored" if activations == "float32" else "q8_0"
    return choose_forward(fakes.tiny(num_hidden_layers=LAYERS), weights, activations=activations)


def works_of(batch: list[tuple[int, Tree]], runner: ModelRunner, floor: float = 0.0) -> list[BatchEntry]:
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
        work.floor = floor
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
chance = st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0, math.nan, 1.5])
fixed_chances = st.dictionaries(
    st.integers(1, LAYERS - 1), st.lists(chance, min_size=1, max_size=20), min_size=1, max_size=2
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(get_args(Activations)),
    batches,
    fixed_chances,
    st.sampled_from([None, 1, 2]),
    st.sampled_from([1e-9, 0.2, 0.5]),
    st.data(),
)
def test_kept_rows_keep_their_bits_and_dropped_ones_are_not_read(activations, batch, chances, late, floor, data):
    plain, pruning = (fakes.runner(tiny(activations), pages=128) for _ in range(2))
    expected_works = works_of(batch, plain)
    works = works_of(batch, pruning, floor)
    expected = plain.forward(expected_works)
    predictor = FixedPredictor(chances)
    pruning.decisions = predictor.in_step() if late is None else predictor.beside(late)
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
    pruning.decisions = None
    after = next_rows(pruning, works, paths)
    for a, b in zip(after, next_rows(plain, expected_works, paths), strict=True):
        assert torch.equal(a, b)


def test_a_predictor_sees_each_nodes_parent_and_prior():
    runner = fakes.runner(tiny())
    drafts = fakes.tree([20, 21, 22, 23], [0, 1, 0, 2])
    drafts.survival = [0.8, 0.4, 0.2, 0.1]
    (first, work) = works_of([(9, Tree()), (5, drafts)], runner, 0.01)
    predictor = FixedPredictor({1: [1.0], 3: [1.0]})
    runner.decisions = predictor.in_step()
    runner.forward([first, work])
    (layer, states, tokens, priors), (later, deeper, *_) = predictor.asked
    assert (layer, later, tokens.tolist()) == (1, 3, [20, 21, 22, 23])
    np.testing.assert_allclose(priors, [0.8, 0.5, 0.2, 0.25])
    assert np.array_equal(states[0], states[2]) and not np.array_equal(states[0], states[1])
    assert not np.array_equal(states[0], deeper[0])
    assert not work.pruned


def test_a_node_below_the_floor_leaves_with_its_subtree():
    runner = fakes.runner(tiny())
    prompt = list(range(6))
    (text,) = fakes.texts(fakes.pipeline(fakes.runner(tiny())), fakes.record(prompt, 4))
    drafts = fakes.tree([*text[:3], (text[0] + 1) % VOCAB], [0, 1, 2, 0])
    (work,) = works_of([(6, drafts)], runner, 0.3)
    work.sequence.tokens[:] = prompt
    work.tokens, work.start, work.sequence.cached = prompt, 0, 0
    runner.decisions = FixedPredictor({2: [0.9, 0.3, 1.0, 0.2]}).in_step()  # survival .9, .27, .27, .2
    logits = runner.forward([work])
    assert {node: round(survival, 2) for node, survival in work.pruned.items()} == {2: 0.27, 3: 0.27, 4: 0.2}
    (verdict,) = verify([work], logits)
    assert (verdict.path, verdict.tokens, verdict.cut) == ([1], text[:2], 2)


def test_a_node_stays_that_survives_as_much_as_its_row_still_costs():
    runner = fakes.runner(tiny())
    (work,) = works_of([(6, fakes.tree([20, 21], [0, 0]))], runner, 0.8)
    rests = (Checkpoint(1, 1, 0.75), Checkpoint(3, 3, 0.25))
    runner.decisions = StepDecisions(FixedPredictor({1: [0.55, 0.65], 3: [0.15]}), rests)
    runner.forward([work])
    assert work.pruned == {1: 0.55, 2: 0.15}
    assert list(runner.exits.left) == [(0.75, 4, 3), (0.25, 3, 2)]
    assert runner.exits.took_s > 0.0
    runner.decisions = None
    (work,) = works_of([(6, Tree())], runner)
    runner.forward([work])
    assert runner.exits == ExitReport()


def test_what_is_asked_beside_the_pass_is_acted_on_at_its_layer():
    """Whether the answer is there sooner or later: the same rows leave in every run."""
    drafts = fakes.tree([20, 21, 22, 23], [0, 1, 0, 3])
    for slow_s in (0.0, 0.05):
        predictor = FixedPredictor({1: [1.0, 0.1, 1.0, 1.0], 2: [0.1, 1.0, 1.0, 1.0], 3: [0.0]})
        quick = predictor.chances

        def chances(*asked, quick=quick, slow_s=slow_s):
            time.sleep(slow_s)
            return quick(*asked)

        predictor.chances = chances
        runner = fakes.runner(tiny())
        (work,) = works_of([(5, drafts)], runner, 0.5)
        runner.decisions = AsyncDecisions(predictor, (Checkpoint(1, 2, 1.0), Checkpoint(2, 3, 1.0)), 0.0)
        runner.forward([work])
        assert [(layer, tokens.tolist()) for layer, _, tokens, _ in predictor.asked] == [
            (1, [20, 21, 22, 23]),
            (2, [20, 22, 23]),
        ], "what left before is not asked about again, and no layer is looked at that has no checkpoint"
        assert work.pruned == {2: 0.1, 1: 0.1}
        assert (runner.exits.took_s > 0.05) == (slow_s > 0.0), "the pass waited"


def test_a_beside_predictors_own_states_are_those_it_was_asked_with():
    """They are not those of later layers, which the pass writes to the same memory meanwhile."""
    seen = []
    for late in (None, 2):
        predictor = FixedPredictor({1: [1.0]})
        runner = fakes.runner(tiny())
        works = works_of([(5, fakes.tree([20, 21]))], runner, 0.5)
        runner.decisions = predictor.in_step() if late is None else predictor.beside(late)
        runner.forward(works)
        seen.append(predictor.asked[0][1])
    assert np.array_equal(*seen)


def test_what_a_thread_takes_from_the_pass_counts_as_taken():
    for slows, is_counted in ((0.0, False), (1e9, True)):
        runner = fakes.runner(tiny())
        works = works_of([(5, fakes.tree([20, 21]))], runner, 0.5)
        runner.decisions = AsyncDecisions(FixedPredictor({1: [1.0]}), (Checkpoint(1, 2, 1.0),), slows)
        runner.forward(works)
        assert (runner.exits.took_s > 1000.0) == is_counted


def test_what_a_predictor_beside_the_pass_raises_ends_the_pass():
    runner = fakes.runner(tiny())
    works = works_of([(5, fakes.tree([20, 21]))], runner, 0.5)
    runner.decisions = AsyncDecisions(FixedPredictor({}), (Checkpoint(1, 2, 1.0),), 0.0)
    with pytest.raises(KeyError):
        runner.forward(works)


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_only_trees_with_a_floor_are_looked_at(floor):
    runner = fakes.runner(tiny())
    works = works_of([(9, Tree()), (5, fakes.tree([20, 21]))], runner)
    works[0].floor = floor
    predictor = FixedPredictor({2: [0.0]})
    runner.decisions = predictor.in_step()
    first, second = runner.forward(works)
    assert (len(first.rows), len(second.rows)) == (1, 3)
    assert predictor.asked == []


def test_a_pass_without_nodes_to_look_at_keeps_all():
    pruner = RowPruner(FixedPredictor({2: [0.0]}).in_step(), [])
    assert pruner.keep(2, np.zeros((0, 8), np.float32)) is None


def test_logits_of_a_pruned_node_cannot_be_asked_for():
    logits = CPURows(torch.zeros(2, 3), [1, 2], None, {0: 0, 2: 1})
    assert logits.token(2, 5, Sampling(), [0]) == 2
    with pytest.raises(KeyError):
        logits.token(1, 5, Sampling(), [0])
