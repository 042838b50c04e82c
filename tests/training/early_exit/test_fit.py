"""Test the fit of rejected drafts, whole and by parts, on data with known answers."""

import numpy as np
import pytest

from app.engine.early_exit.predictors import FittedPredictor, Lens
from training.early_exit.fit import (
    FALSE_SHARE,
    auc,
    choose,
    fit_layer,
    fit_rank,
    judge,
    logistic,
    net_rows,
    paths,
    ridge,
)
from training.early_exit.trees import Nodes, Recording

D, V = 8, 20


def recording(seed: int = 0, count: int = 600) -> tuple[Recording, np.ndarray]:
    """Make chains of two nodes: final states are a rotation of the recorded ones, drafts are right at random."""
    draw = np.random.default_rng(seed)
    states = draw.normal(size=(2 * count, D))
    turn = np.linalg.qr(draw.normal(size=(D, D)))[0]
    finals = states @ turn * 3.0
    head = draw.normal(size=(V, D))
    tokens = (finals @ head.T).argmax(1)
    nodes = Nodes()
    for i in range(count):
        for depth in (0, 1):
            row = 2 * i + depth
            is_right = bool(draw.random() < 0.5)
            nodes.tokens.append(int(tokens[row]) if is_right else int((tokens[row] + draw.integers(1, V)) % V))
            nodes.is_right.append(is_right)
            nodes.is_reached.append(depth == 0 or nodes.is_right[-2])
            nodes.parents.append(-1 if depth == 0 else len(nodes.tokens) - 2)
            nodes.priors.append(0.5)
            nodes.survival.append(0.5 ** (depth + 1))
            nodes.prompts.append(i % 20)
            nodes.rows.append(row)
    numbers = np.repeat(np.arange(count) % 20, 2)
    found = Recording(nodes, {3: states.astype(np.float16)}, finals.astype(np.float16), tokens, numbers)
    return found, head.astype(np.float32)


def test_a_fitted_checkpoint_finds_rejected_drafts_of_held_out_prompts():
    data, head = recording()
    train = np.arange(20) % 4 != 0
    lens = Lens(head, np.arange(V))
    fit = fit_layer(data, 3, lens, train)
    tokens, priors = np.array(data.nodes.tokens), np.array(data.nodes.priors)
    chances = FittedPredictor(lens, {3: fit.weight}, {3: fit.logistic}).chances(3, data.at_nodes(3), tokens, priors)
    judged = judge(data, chances, chances, ~train, price=0.1, rest=0.5)
    assert judged.auc > 0.95 and judged.auc_prior == 0.5
    assert judged.precision > 0.9 and judged.recall > 0.5 and judged.lost < 0.1
    assert judged.net_rows > 0.0
    none = np.zeros(len(chances))
    blind = judge(data, none, none, ~train, 0.1, 0.5)
    assert blind.dropped == blind.recall == blind.lost == 1.0
    assert blind.net_rows < 0.0, "all rows are saved and all tokens lost"
    assert judge(data, none, chances, ~train, 0.1, 0.5).auc == judged.auc, "of the scores, not of what they are cut to"


def test_the_rank_drops_few_right_tokens_and_one_less_would_drop_more():
    data, head = recording()
    norm, train = np.ones(D, np.float32), np.arange(20) % 4 != 0
    nodes = data.nodes
    counts = Lens(head, np.arange(V)).likelier(norm, data.at_nodes(3), np.array(nodes.tokens))
    rank = fit_rank(data, counts, train)
    right = counts[np.array(nodes.is_right) & np.array(nodes.is_reached) & train[nodes.prompts]]
    assert (right >= rank).mean() <= FALSE_SHARE < (right >= rank - 1).mean()
    assert fit_rank(data, counts, np.zeros(20, bool)) == 1


def test_rows_gained_by_several_checkpoints_are_each_saved_once():
    """Node 0 leaves at the first, 1 at the second, 2 at both, 3 is right and leaves at the second, 4 has no row."""
    nodes = Nodes(
        tokens=[1] * 5, priors=[0.5] * 5, survival=[0.5] * 4 + [0.01], parents=[-1] * 5,
        is_right=[False] * 3 + [True, False], is_reached=[True] * 5, prompts=[0] * 5, rows=[0] * 5,
    )  # fmt: skip
    data = Recording(nodes, {}, np.zeros((1, D)), np.zeros(1), np.zeros(1, int))
    chances = {5: np.array([0.0, 1, 0, 1, 0]), 9: np.array([1.0, 0, 0, 0, 0])}
    everything = np.ones(1, bool)
    both = net_rows(data, chances, everything, 0.1, {5: 0.8, 9: 0.3}.__getitem__)
    assert both == pytest.approx((2 * 0.8 + 2 * 0.3 - 1 / 0.1) / 4)
    first = net_rows(data, {5: chances[5]}, everything, 0.1, {5: 0.8}.__getitem__)
    assert first == pytest.approx(2 * 0.8 / 4)


def test_checkpoints_are_chosen_as_long_as_they_gain_together():
    worth = {3: 1.0, 5: 2.0, 7: 1.5}

    def gain(some):
        return sum(worth[layer] for layer in some) - 1.2 * len(some)

    assert choose(gain, worth, None) == (5, 7)
    assert choose(gain, worth, 1) == (5,)
    assert choose(gain, worth, 3) == (3, 5, 7)
    assert choose(lambda some: -len(some), worth, None) == (3,), "one at least"


def test_ridge_regression_finds_the_linear_map():
    draw = np.random.default_rng(1)
    x, true = draw.normal(size=(4000, 5)), draw.normal(size=(5, 3))
    np.testing.assert_allclose(ridge(x, x @ true), true, atol=0.05)


def test_logistic_regression_finds_the_weights():
    draw = np.random.default_rng(2)
    x = np.stack([np.ones(20000), draw.normal(size=20000)], 1)
    y = (draw.random(20000) < 1 / (1 + np.exp(-(x @ [-1.0, 2.0])))).astype(float)
    np.testing.assert_allclose(logistic(x, y), [-1.0, 2.0], atol=0.1)


def test_survival_is_the_product_of_chances_along_the_path():
    nodes = Nodes(parents=[-1, 0, 1, 0])
    assert paths(np.array([0.5, 0.5, 0.5, 0.2]), nodes) == pytest.approx([0.5, 0.25, 0.125, 0.1])


@pytest.mark.parametrize(
    ("scores", "right", "expected"),
    [
        ([1, 2, 3, 4], [0, 0, 1, 1], 1.0),
        ([1, 2, 3, 4], [1, 1, 0, 0], 0.0),
        ([1, 1], [0, 1], 0.5),
        ([1, 2], [1, 1], 0.5),
    ],
)
def test_auc_counts_ties_half_and_one_kind_as_chance(scores, right, expected):
    assert auc(np.array(scores, float), np.array(right, bool)) == expected
