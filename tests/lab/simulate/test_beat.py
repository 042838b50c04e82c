"""Test what the controller does in a simulated deployment, and policies that stay as they are."""

import argparse
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from app.messages import FUSE
from app.policy import Policy
from app.stages.draft.registry import build as model_free
from app.state import Guess
from lab.cooperate.variants import Variant, crowds
from lab.simulate.beat import (
    BEATLESS,
    FROZEN,
    LOST,
    SCENES,
    best_of,
    frozen,
    play,
    replay_beat,
    replay_frozen,
    steady,
)
from lab.simulate.log import DEPTH, DrafterLog, Log, Text
from lab.simulate.machines import build
from lab.simulate.run import over, simulate
from lab.simulate.world import Setting, World, agreement_of

STEP_S, TOKEN_S, LENGTH, TEXTS = 0.03, 0.001, 24, 6
LEASE_S = 2.0


@pytest.fixture
def log() -> Log:
    """Make two drafters that are right about three tokens of four, and wrong about others."""
    texts = tuple(
        Text(domain="all", prompt_ids=(1, i), tokens=tuple(range(100 * i, 100 * i + LENGTH)))
        for i in range(1, TEXTS + 1)
    )

    def guess(token: int, shift: int) -> Guess:
        return Guess(token if (token + shift) % 4 else 999, 0.7, token + 1, 0.1)

    def drafter(shift: int) -> DrafterLog:
        chains = tuple(
            tuple(tuple(guess(token, shift) for token in text.tokens[i : i + DEPTH]) for i in range(LENGTH))
            for text in texts
        )
        return DrafterLog(guesses=chains, token_s={1: TOKEN_S, 64: TOKEN_S})

    costs = json.dumps({"points": [[1, STEP_S], [64, 1.1 * STEP_S]], "ratio": 1.0})
    return Log(costs=costs, vocab_size=2000, texts=texts, drafters={"a": drafter(0), "b": drafter(2)})


def args(**changed: object) -> argparse.Namespace:
    values = {"rates": [2.0], "seconds": 6.0, "seeds": 2, "drafter_slowdown": 1.0, "slowdown": [1.0], "hop_ms": 0.5}
    return argparse.Namespace(**{**values, "verifiers": 1, "seed": 0, "scenes": SCENES, **changed})


def run(log: Log, variant: Variant, setting: Setting, arrivals_s: list[float] | None = None) -> World:
    world = build(log, variant, setting, model_free)
    world.run(arrivals_s)
    for record in world.ended:
        assert world.store.snapshot(record.id).tokens == log.texts[int(record.id.partition(".")[0])].tokens
    return world


def test_slow_drafters_make_beat_change_the_policy_and_not_without_it(log: Log) -> None:
    slow, moments = Setting(1, drafter_slowdown=200.0), [0.1 * i for i in range(60)]
    fixed = {"lengths": "fixed:4"}
    steered = run(log, Variant("", fixed, model_free=()), slow, moments)
    left = run(log, Variant("", fixed, model_free=(), is_steered=False), slow, moments)
    assert steered.switches["max_draft_tokens"] > 0 and steered.policy.version > 0
    assert not left.switches and left.policy == Policy()


@pytest.mark.parametrize("is_steered", [True, False])
def test_a_frozen_field_stays_as_it_is(log: Log, is_steered: bool) -> None:
    arm = Variant("", model_free=(), is_steered=is_steered, policy={"max_draft_tokens": 2, "max_batch_tokens": 64})
    world = run(log, arm, Setting(1, drafter_slowdown=200.0), [0.1 * i for i in range(40)])
    assert (world.policy.max_draft_tokens, world.policy.max_batch_tokens) == (2, 64)
    assert "max_draft_tokens" not in world.switches


def test_every_value_of_a_frozen_field_is_a_policy_and_the_first_policy_has_one_of_them() -> None:
    for name, values in FROZEN.items():
        assert all(Policy.model_validate({name: value}) for value in values)
        assert getattr(Policy(), name) in values


def test_a_silent_drafter_takes_no_mail_and_is_left_out_once_its_lease_ends(log: Log) -> None:
    moments = [0.25 * i for i in range(40)]
    wanted = {"routing": "all", "lengths": "fixed:3", "overlap": "none"}
    variant = Variant("", wanted, model_free=())
    world = run(log, variant, Setting(1, silent_s={"a": 3.0}), moments)
    whole = run(log, variant, Setting(1), moments)
    a, b = (world.network.machines[f"draft:{name}"] for name in ("a", "b"))
    assert 0.0 < a.busy_s < 0.6 * b.busy_s
    assert whole.network.machines["draft:a"].busy_s > 2.0 * a.busy_s
    assert a.clock.now_s <= 3.1 and a.mail, "what came after that waits for ever"
    assert set(world.verifiers[0].segment.speculation.pool.models) == {"b"}
    assert world.network.machines[FUSE].busy_s > 0.0


def test_a_tree_has_no_more_nodes_than_its_arm_allows(log: Log) -> None:
    drafted = {}
    for arm in crowds()[1:]:
        if arm.changes["drafters_per_sequence"] == 2:
            world = run(log, arm, Setting(2))
            ends = [world.store.snapshot(record.id).stats for record in world.ended]
            drafted[arm.nodes, arm.changes["lengths"]] = sum(e.drafted for e in ends) / sum(e.rounds for e in ends)
    assert all(count <= nodes for (nodes, _), count in drafted.items() if nodes)
    assert drafted[1, "tree:1"] < drafted[2, "tree:2"] < drafted[4, "tree:4"] < drafted[8, "tree:8"]


def test_the_best_value_over_all_loads_and_what_it_loses_at_each() -> None:
    still = best_of({"light": {"1": 1.0, "2": 1.01}, "heavy": {"1": 2.0, "2": 2.02}})
    assert (still["best value"], still["moves with the load"]) == ("1", False)
    moving = best_of({"light": {"1": 1.0, "2": 1.1}, "heavy": {"1": 2.4, "2": 2.0}})
    assert (moving["best value"], moving["moves with the load"]) == ("2", True)
    assert moving[LOST] == {"light": 0.1, "heavy": 0.0}


def test_requests_of_two_arms_are_paired_by_their_moments(log: Log) -> None:
    scene = steady(args(), 2.0)
    first, again = (play(log, frozen("max_batch_tokens", 2048), Setting(1), scene, model_free) for _ in range(2))
    assert first == again and len(first.total_s) == sum(map(len, scene.arrivals_s.values()))
    assert play(log, frozen("max_draft_tokens", 0), Setting(1), scene, model_free).total_s > first.total_s


def test_the_report_says_what_beat_did_in_each_scene(log: Log) -> None:
    found = replay_beat(log, args(seconds=3.0, seeds=1), model_free)["scenes"]
    assert found.keys() == set(SCENES)
    for scene in found.values():
        for kind in ("models", "models and tables"):
            left = scene["arms"][f"{kind}, {BEATLESS}"]
            mean, lower, upper = left["over beat"]
            assert left["policy changes"] == {} and lower <= mean <= upper


def test_the_sweep_holds_a_field_at_each_value_load_by_load(log: Log) -> None:
    chosen = args(fields=["draft_wait_factor"], rates=[2.0, 4.0], seconds=3.0, seeds=1, plain=False, long=True)
    found = replay_frozen(log, chosen, model_free)["fields"]["draft_wait_factor"]
    assert [*found["total_s"]] == ["2 a second, long prompts", "4 a second, long prompts"]
    for load, row in found["total_s"].items():
        assert [*row] == [str(value) for value in FROZEN["draft_wait_factor"]]
        assert found["paired"][load][found["best value"]] == [1.0, 1.0, 1.0]


def test_ways_are_set_against_each_other_text_by_text(log: Log) -> None:
    ways = [Variant("off", speculates=False), Variant("full", model_free=())]
    outcomes = {way.name: simulate(log, way, Setting(1), model_free) for way in ways}
    mean, lower, upper = over(outcomes)["off"]["full"]
    assert 1.0 < lower <= mean <= upper
    assert over(outcomes)["full"]["off"][0] == pytest.approx(1.0 / mean, abs=1e-3)


def test_cosine_rates_by_the_targets_embedding_where_that_is_named(log: Log, tmp_path: Path) -> None:
    save_file({"model.embed_tokens.weight": torch.randn(2000, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    named = log.model_copy(update={"target": tmp_path})
    cosine, pace = Variant("", {"plan": "cosine"}), Variant("")
    near = agreement_of(build(named, cosine, Setting(1), model_free))([5], [6])
    assert 0.0 < near < 1.0
    for which, variant in ((log, cosine), (named, pace)):
        assert agreement_of(build(which, variant, Setting(1), model_free))([5], [6]) == 0.0
    plain, rated = (run(which, cosine, Setting(2)) for which in (log, named))
    scores = [w.verifiers[0].segment.speculation.router.asked_rounds for w in (plain, rated)]
    assert all(scores)
