"""Predictors: tokens are weighed by the formula, and a predictor is read for its own target alone."""

import json
from functools import partial
from typing import get_args

import numpy as np
import pytest
from safetensors.numpy import save_file

from app.engine.early_exit.decisions import RowCost
from app.engine.early_exit.predictors import (
    CARD,
    WEIGHTS,
    Lens,
    LensScores,
    RankPredictor,
    load_decisions,
    scaled,
    signs,
)
from app.engine.early_exit.rows import Checkpoint
from app.engine.weights.tensors import embedding_sha256
from app.errors import ModelRefused
from app.plans import PrunerRule
from tests import fakes

D, V = 32, fakes.VOCAB


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    fakes.tiny().save_pretrained(folder)
    return folder


def written(folder, target, **changes):
    card = {
        "embedding_sha256": embedding_sha256(target),
        "row_cost": {"num_layers": 4, "layer": 2000, "head": 4000},
        "logistic": {"1": [0.0, 1.0, 0.0, 0.0], "2": [0.0, 1.0, 0.0, 0.0]},
        "ranks": {"1": 5, "2": 3, "3": 2},
        "whole_ranks": {"1": 50, "2": 30, "3": 20},
        **changes,
    }
    folder.mkdir()
    arrays = {"common": np.arange(8), **{f"lens.{layer}": np.eye(D, dtype=np.float16) for layer in (1, 2)}}
    save_file(arrays, folder / WEIGHTS)
    (folder / CARD).write_text(json.dumps(card))
    return folder


def load(folder, target, rule, threads=1, asked=None):
    """Load it; the count over the whole vocabulary finds as many tokens likelier as the token's number."""

    def whole(count_threads):
        if asked is not None:
            asked.append(count_threads)
        return lambda states, tokens: tokens

    return load_decisions(folder, target, rule, threads, 0.5, whole)


def test_a_token_is_weighed_against_the_frequent_ones():
    head = np.random.default_rng(0).normal(size=(V, D)).astype(np.float32)
    common, tokens = np.arange(5), np.array([40, 2])
    states = np.random.default_rng(1).normal(size=(2, D)).astype(np.float32)
    scores = Lens(head, common).scores(states, np.eye(D, dtype=np.float32), tokens)
    z = scaled(states) @ head.T
    np.testing.assert_allclose(scores.own, [z[0, 40], z[1, 2]], rtol=1e-4)
    np.testing.assert_allclose(scores.best, z[:, :5].max(1), rtol=1e-4)
    expected = [np.log(np.exp([*z[i, :5], z[i, token]]).sum()) for i, token in enumerate(tokens)]
    np.testing.assert_allclose(scores.total, expected, rtol=1e-4)


def test_signs_are_finite_whatever_drafters_think():
    one = np.ones(3)
    assert np.isfinite(signs(LensScores(one, -1e9 * one, one), np.array([0.0, 1.0, 0.3]))).all()


def test_fasers_rule_drops_a_token_with_k_likelier_ones():
    head = np.eye(V, D, dtype=np.float32)
    state = np.zeros((1, D), np.float32)
    state[0, :4] = 3.0, 2.5, 1.0, 0.5
    lens = Lens(head, np.array([0, 1, 2]))
    rule = RankPredictor(partial(lens.likelier, np.ones(D, np.float32)), {4: 2, 6: 1})
    states, tokens = np.repeat(state, 4, 0), np.arange(4)
    assert rule.layers == (4, 6)
    assert rule.chances(4, states, tokens, np.full(4, 0.5)).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert rule.chances(6, states, tokens, np.full(4, 0.5)).tolist() == [1.0, 0.0, 0.0, 0.0], "tighter at a deeper one"
    norm = np.array([-1.0, 1, 1, 1, *[1] * (D - 4)], np.float32)
    turned = RankPredictor(partial(Lens(head, np.array([0])).likelier, norm), {4: 1})
    assert turned.chances(4, states, tokens, np.full(4, 0.5)).tolist() == [1.0, 1.0, 1.0, 1.0], "under the last norm"


def ask(decisions, look, tokens):
    states = np.ones((len(tokens), D), np.float32)
    chances, took_s = decisions.ask(look, states, np.array(tokens), np.full(len(tokens), 0.5))()
    assert ((chances >= 0.0) & (chances <= 1.0)).all()
    return chances.tolist(), took_s


@pytest.mark.parametrize("rule", get_args(PrunerRule))
def test_every_rules_checkpoints_are_read(tmp_path, target, rule):
    asked = []
    decisions = load(written(tmp_path / "pruner", target), target, rule, asked=asked)
    is_async, late = rule.endswith("-async"), 2 if rule == "faser-whole-async" else 1
    looks = {"fitted": [1, 2], "faser": [1, 2, 3]}.get(rule.split("-")[0])
    if is_async:  # the answer of the last would come too late; a head's price is two layers, so the second would wait
        looks = [1] if late == 2 else [1, 2]
    rests = {layer: ((4 - layer) * 2000 + 4000) / 12000 for layer in range(4)}
    acts = [look + late * is_async for look in looks]
    assert decisions.checkpoints == tuple(
        Checkpoint(look, act, rests[act]) for look, act in zip(looks, acts, strict=True)
    )
    chances, took_s = ask(decisions, 1, [3, 60])
    assert len(chances) == 2 and (took_s > 0.0) == is_async
    if "whole" in rule:
        assert chances == [1.0, 0.0] and ask(decisions, 1, [49, 50])[0] == [1.0, 0.0]
        assert asked == [1 if is_async else None]
    else:
        assert asked == []


def test_answers_come_later_where_a_pass_has_more_threads_and_never_after_its_end(tmp_path, target):
    folder = written(tmp_path / "pruner", target)
    assert load(folder, target, "faser-whole-async", threads=2).checkpoints == ()
    assert [one.act for one in load(folder, target, "faser-async", threads=8).checkpoints] == [3]


def test_no_look_is_asked_for_while_another_answer_is_awaited():
    cost = RowCost(30, 1000, 8000)
    assert [one[:2] for one in cost.checkpoints((10, 15, 18, 21, 29), late=8)] == [(10, 18), (18, 26)]
    assert [one.look for one in cost.checkpoints((10, 15, 29))] == [10, 15, 29]


def test_a_predictor_of_another_target_is_left_out(tmp_path, target):
    folder = written(tmp_path / "pruner", target, embedding_sha256="another")
    assert load(folder, target, "fitted") is None


@pytest.mark.parametrize(
    ("part", "rule"),
    [("ranks", "faser"), ("whole_ranks", "faser-whole"), ("logistic", "fitted"), ("row_cost", "fitted")],
)
def test_a_folder_without_what_a_rule_needs_is_refused(tmp_path, target, part, rule):
    folder = written(tmp_path / "pruner", target)
    card = json.loads((folder / CARD).read_text())
    del card[part]
    (folder / CARD).write_text(json.dumps(card))
    with pytest.raises(ModelRefused, match="fit-pruning"):
        load(folder, target, rule)


def test_a_missing_predictor_is_refused(tmp_path, target):
    with pytest.raises(ModelRefused, match="no predictor"):
        load(tmp_path / "nowhere", target, "fitted")
