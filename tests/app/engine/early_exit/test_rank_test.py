"""The rank test: tokens are weighed by the formula, and a test is read for its own target alone."""

import json

import numpy as np
import pytest
import torch

from app.engine.early_exit.rank_test import CARD, EPSILON, Lens, RankTest, RowCost, load_rank_test
from app.engine.early_exit.rows import Checkpoint
from app.engine.weights.tensors import embedding_sha256
from app.errors import ModelRefused
from tests import fakes

D, V = 32, fakes.VOCAB
COST = RowCost(8, 1000, 2000)


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    fakes.tiny().save_pretrained(folder)
    return folder


def written(folder, target, **changes):
    card = {
        "embedding_sha256": embedding_sha256(target),
        "row_cost": {"num_layers": 4, "layer": 2000, "head": 4000},
        "ranks": {"1": 5, "3": 2},
        "common": [*range(8)],
        **changes,
    }
    folder.mkdir()
    (folder / CARD).write_text(json.dumps(card))
    return folder


def test_a_token_with_k_likelier_ones_is_rejected():
    state = np.zeros((1, D), np.float32)
    state[0, :4] = 3.0, 2.5, 1.0, 0.5
    lens = Lens(np.ones(D, np.float32), torch.eye(V, D), np.array([0, 1, 2]))
    rule = RankTest(lens, {6: 1, 4: 2}, COST)
    states, tokens = np.repeat(state, 4, 0), np.arange(4)
    assert rule.checkpoints == (Checkpoint(4, 0.6), Checkpoint(6, 0.4))
    assert rule.rejects(4, states, tokens).tolist() == [False, False, True, True]
    assert rule.rejects(6, states, tokens).tolist() == [False, True, True, True], "K falls with depth"


def test_tokens_are_counted_under_the_targets_norm_and_head(target):
    rng = np.random.default_rng(0)
    states, tokens, common = rng.normal(size=(9, D)).astype(np.float32), rng.integers(0, V, 9), np.arange(5)
    model = fakes.tiny()
    norm, head = model.model.norm.weight.detach().numpy(), model.lm_head.weight.detach().numpy()
    logits = norm * states / np.sqrt(np.square(states).mean(1, keepdims=True) + EPSILON) @ head.T
    expected = (logits[:, common] > np.take_along_axis(logits, tokens[:, None], 1)).sum(1)
    assert Lens.of(target, common).likelier(states, tokens).tolist() == expected.tolist()


def test_a_rank_test_is_read_for_its_target(tmp_path, target):
    found = load_rank_test(written(tmp_path / "pruner", target), target)
    assert found is not None
    assert found.checkpoints == (Checkpoint(1, 10 / 12), Checkpoint(3, 6 / 12))
    assert found.rejects(1, np.ones((2, D), np.float32), np.array([3, 60])).dtype == bool
    assert load_rank_test(written(tmp_path / "other", target, embedding_sha256="another"), target) is None


@pytest.mark.parametrize("part", ["ranks", "common", "row_cost"])
def test_a_folder_without_a_part_is_refused(tmp_path, target, part):
    folder = written(tmp_path / "pruner", target)
    card = json.loads((folder / CARD).read_text())
    del card[part]
    (folder / CARD).write_text(json.dumps(card))
    with pytest.raises(ModelRefused, match="fit-pruning"):
        load_rank_test(folder, target)


def test_a_missing_folder_is_refused(tmp_path, target):
    with pytest.raises(ModelRefused, match="cannot be read"):
        load_rank_test(tmp_path / "nowhere", target)
