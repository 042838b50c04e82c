"""Predictors: tokens are weighed by the formula, and a predictor is read for its own target alone."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from app.engine.early_exit.predictors import (
    CARD,
    WEIGHTS,
    FittedPredictor,
    Lens,
    LensScores,
    RankPredictor,
    load_predictor,
    scaled,
    signs,
)
from app.engine.weights.tensors import embedding_sha256
from app.errors import ModelRefused
from tests import fakes

D, V = 32, fakes.VOCAB


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    fakes.tiny().save_pretrained(folder)
    return folder


def written(folder, target, layer=1, **changes):
    card = {
        "embedding_sha256": embedding_sha256(target),
        "layers": [layer],
        "rest": 0.4,
        "logistic": {str(layer): [0.0, 1.0, 0.0, 0.0]},
        "ranks": {str(layer): 3},
        "ranks_rest": 0.4,
        **changes,
    }
    folder.mkdir()
    arrays = {"common": np.arange(8), f"lens.{layer}": np.eye(D, dtype=np.float16)}
    save_file(arrays, folder / WEIGHTS)
    (folder / CARD).write_text(json.dumps(card))
    return folder


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
    assert np.isfinite(signs(LensScores(one, -1e9 * one, one, one), np.array([0.0, 1.0, 0.3]))).all()


def test_fasers_rule_drops_a_token_with_k_likelier_ones():
    head = np.eye(V, D, dtype=np.float32)
    state = np.zeros((1, D), np.float32)
    state[0, :4] = 3.0, 2.5, 1.0, 0.5
    rule = RankPredictor(Lens(head, np.array([0, 1, 2])), np.ones(D, np.float32), {4: 2, 6: 1})
    states, tokens = np.repeat(state, 4, 0), np.arange(4)
    assert rule.layers == (4, 6)
    assert rule.chances(4, states, tokens, np.full(4, 0.5)).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert rule.chances(6, states, tokens, np.full(4, 0.5)).tolist() == [1.0, 0.0, 0.0, 0.0], "tighter at a deeper one"
    turned = RankPredictor(Lens(head, np.array([0])), np.array([-1.0, 1, 1, 1, *[1] * (D - 4)], np.float32), {4: 1})
    assert turned.chances(4, states, tokens, np.full(4, 0.5)).tolist() == [1.0, 1.0, 1.0, 1.0], "under the last norm"


@pytest.mark.parametrize(("rule", "kind"), [("fitted", FittedPredictor), ("faser", RankPredictor)])
def test_a_predictors_folder_is_read(tmp_path, target, rule, kind):
    loaded = load_predictor(written(tmp_path / "pruner", target), target, rule)
    assert isinstance(loaded.predictor, kind)
    assert (loaded.predictor.layers, loaded.rest) == ((1,), 0.4)
    chances = loaded.predictor.chances(1, np.ones((2, D), np.float32), np.array([3, 60]), np.array([0.5, 0.1]))
    assert chances.shape == (2,) and ((chances >= 0.0) & (chances <= 1.0)).all()


def test_a_predictor_of_another_target_is_left_out(tmp_path, target):
    folder = written(tmp_path / "pruner", target, embedding_sha256="another")
    assert load_predictor(folder, target, "fitted") is None


def test_a_folder_without_ranks_is_refused_for_fasers_rule(tmp_path, target):
    folder = written(tmp_path / "pruner", target)
    card = json.loads((folder / "pruning.json").read_text())
    del card["ranks"]
    (folder / "pruning.json").write_text(json.dumps(card))
    assert load_predictor(folder, target, "fitted") is not None
    with pytest.raises(ModelRefused, match="fit-pruning"):
        load_predictor(folder, target, "faser")


def test_a_missing_predictor_is_refused(tmp_path, target):
    with pytest.raises(ModelRefused, match="no predictor"):
        load_predictor(tmp_path / "nowhere", target, "fitted")
