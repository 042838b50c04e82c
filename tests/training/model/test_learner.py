"""Test learning: a drafter with all of the target's layers is always right, others improve, a seed decides all."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import WIDTH
from training.data.batches import NOTHING, batch, head_tokens, round_starts, weighted
from training.data.rows import Row
from training.model.evaluate import ALL, DRAFTED, evaluate, judged
from training.model.learner import GOLD, Learner, Recipe, rate_at
from training.model.student import Student, load_target

RECIPE = Recipe(seed=0, batch=4, rate=3e-3, negatives=16)


@pytest.fixture(scope="module")
def model(target: Path) -> Any:
    torch.set_num_threads(1)
    return load_target(target)


def _student(model: Any, layers: list[int], has_features: bool = True) -> Student:
    return Student(model, layers, list(range(model.config.vocab_size)), has_features)


def test_a_drafter_of_all_the_targets_layers_is_the_target(model: Any, rows: list[Row]) -> None:
    """Fails if positions, states, gold indices or round starts are off by one anywhere."""
    student = _student(model, [0, 1, 2])
    scores = evaluate(student, judged(rows, 9))
    assert {score["top1"] for score in scores.values()} == {1.0}
    assert scores[ALL]["tokens_per_round"] > 0.8 * (DRAFTED + 1)  # the last round of a row is a short one
    whole = Recipe(seed=0, batch=4, rate=1e-9, negatives=5000)
    text = [row for row in rows if row.is_greedy]
    loss = Learner(student, text, whole).learn(None).total
    one = batch(text[:1], torch.arange(model.config.vocab_size), WIDTH, random.Random(0))
    says = (one.target_states @ student.head.T).log_softmax(-1)
    assert (says.argmax(-1) == one.gold[one.gold != NOTHING]).all()
    assert loss < GOLD * -says.gather(1, one.gold[one.gold != NOTHING][:, None]).mean().item() + 0.3


@pytest.mark.parametrize(("has_features", "has_states"), [(True, True), (True, False), (False, False)])
def test_learning_raises_tokens_per_round(model: Any, rows: list[Row], has_features: bool, has_states: bool) -> None:
    if not has_states:
        rows = [Row(r.domain, r.prompt, r.continuation, r.labels, r.is_greedy, None) for r in rows]
    student = _student(model, [0], has_features)
    few = judged(rows, 2)
    before = evaluate(student, few)[ALL]["tokens_per_round"]
    learner = Learner(student, few, RECIPE)
    losses = [learner.learn(60).total for _ in range(60)]
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])
    assert evaluate(student, few)[ALL]["tokens_per_round"] > before + 0.3


def test_features_are_read_where_a_round_starts_and_learnt(model: Any, rows: list[Row]) -> None:
    student = _student(model, [0])
    learner = Learner(student, rows, RECIPE)
    for _ in range(3):
        learner.learn(10)
    assert student.feature.weight.abs().max() > 0 and student.absent.abs().max() > 0
    ids, states = torch.tensor([rows[0].tokens]), torch.randn(1, len(rows[0].tokens), WIDTH)
    present = torch.zeros(ids.shape, dtype=torch.bool)
    assert torch.equal(student(ids, states, present), student(ids, 2 * states, present))
    present[0, 5] = True
    differs = (student(ids, states, present) != student(ids, 2 * states, present)).any(-1)[0]
    assert not differs[:5].any() and differs[5] and differs[6:].float().mean() > 0.5


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(model: Any, rows: list[Row]) -> None:
    def weights(seed: int) -> torch.Tensor:
        learner = Learner(_student(model, [0]), rows, Recipe(seed, batch=4, rate=3e-3, negatives=16))
        for _ in range(4):
            learner.learn(4)
        return torch.cat([tensor.flatten() for tensor in learner.student.state_dict().values()])

    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))


def test_rounds_commit_one_to_five_tokens() -> None:
    starts = round_starts(7, 5000, random.Random(0))
    steps = [b - a for a, b in zip(starts, starts[1:], strict=False)]
    assert starts[0] == 7 and starts[-1] < 5000 and set(steps) == {1, 2, 3, 4, 5}
    assert 0.33 < steps.count(1) / len(steps) < 0.43  # 1 - GOES_ON


def test_padding_and_tokens_outside_the_head_have_no_loss(rows: list[Row]) -> None:
    to_head = torch.full((300,), NOTHING)
    known = rows[0].continuation[0]
    to_head[known] = 0
    one = batch(rows[:3], to_head, WIDTH, random.Random(0))
    for i, row in enumerate(rows[:3]):
        asked = [at for at, index in enumerate(one.gold[i].tolist()) if index != NOTHING]
        assert asked == [at - 1 for at in range(len(row.prompt), len(row.tokens)) if row.tokens[at] == known]
        assert not one.present[i, : len(row.prompt)].any() and not one.present[i, len(row.tokens) :].any()
    assert one.target_states.shape == (len(one.is_known), WIDTH) and one.is_known.all()


def test_the_head_holds_the_most_frequent_tokens(rows: list[Row]) -> None:
    answers = [token for row in rows for token in row.continuation]
    head = head_tokens(rows, 257, 8)
    assert head == sorted(head) and len(head) == 8
    assert min(answers.count(token) for token in head) >= max(answers.count(t) for t in set(answers) - set(head))
    assert head_tokens(rows, 257, 257) == list(range(257))


def test_domains_that_are_not_named_keep_a_share(rows: list[Row]) -> None:
    assert weighted(rows, (), 0.15) == rows
    kept = weighted(rows, ("code",), 0.3)
    assert all(row in kept for row in rows if row.domain == "code") and len(kept) < len(rows)


def test_the_rate_warms_up_and_falls() -> None:
    rates = [rate_at(step, 100, 1e-3) for step in range(1, 101)]
    assert rates[0] < rates[10] < rates[29] and rates[30] > rates[60] > rates[99] >= 1e-5
    assert rate_at(3, None, 1e-3) == pytest.approx(rate_at(3, 10**6, 1e-3))
