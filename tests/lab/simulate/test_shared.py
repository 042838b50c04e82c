"""Test the device that a simulated target and its drafter share, and FASER's controller upon it."""

import json
from typing import Any

import pytest

from app.stages.draft.registry import build as model_free
from app.state import Guess
from lab.simulate.load import run
from lab.simulate.log import DEPTH, DrafterLog, Log, Text
from lab.simulate.shared_device import SharedDevice, Sharing
from lab.simulate.world import Setting, World
from lab.ways import Variant

VOCAB, LENGTH, TEXTS = 5000, 48, 24
COMMON = {"plan": "faser", "pruning": "off", "max_sequences": 512}
SHARING = Sharing(
    units=100,
    splits=(20, 50),
    row_compute_s=0.001,
    token_compute_s=1e-6,
    reads_with=0.2,
    kappa=0.05,
    draft_token_s={1: 0.006, 64: 0.006},
)


@pytest.fixture
def log() -> Log:
    """Make texts of which a drafter is wrong about one token in nine."""
    texts = tuple(
        Text(domain="all", prompt_ids=(1,), tokens=tuple(range(100 * i, 100 * i + LENGTH))) for i in range(1, TEXTS + 1)
    )

    def chain(text: Text, at: int) -> tuple[Guess, ...]:
        found = text.tokens[at : at + DEPTH]
        return tuple(Guess(token if token % 9 else 4999, 0.9, 0, 0.0) for token in found)

    guesses = tuple(tuple(chain(text, at) for at in range(LENGTH)) for text in texts)
    costs = json.dumps({"points": [[1, 0.020], [400, 0.030]], "ratio": 1.0})
    return Log(
        costs=costs, vocab_size=VOCAB, texts=texts, drafters={"one": DrafterLog(guesses=guesses, token_s={1: 1.0})}
    )


def test_a_split_gives_each_side_its_part_and_both_slow_each_other() -> None:
    device = SharedDevice(SHARING.model_copy(update={"reads_with": 0.4}), "auto")
    assert [split.units for split in device.all] == [0, 20, 50]
    assert device.verify(0.0, 10, 0.010, 0.002) == pytest.approx(0.012), "the whole device"
    assert device.draft(0.0, 4, 0.004) == pytest.approx(0.016), "in turn: it begins when the step has ended"
    device.use(2)
    assert device.verify(5.0, 10, 0.010, 0.002) == pytest.approx(0.022), "half of the compute, and nothing beside it"
    assert device.draft(5.022, 4, 0.004) == pytest.approx(0.004 * (1 + 0.05 * 0.022)), "reads at full speed with half"
    device.use(1)
    assert device.draft(9.0, 4, 0.004) == pytest.approx(0.008), "a fifth reads at half of the speed"


def stated(log: Log, sharing: Sharing) -> Log:
    """Give the drafter the stated times."""
    own = log.drafters["one"].model_copy(update={"token_s": sharing.draft_token_s, "read_s": sharing.token_compute_s})
    return log.model_copy(update={"drafters": {"one": own}})


def simulated(log: Log, streams: int, **changes: Any) -> World:
    own = stated(log, SHARING)
    variant = Variant("", {**COMMON, "lengths": "fixed:2", **changes}, is_steered=False)
    return run(own, variant, Setting(streams=streams, shared=SHARING), None, model_free)


def test_the_controller_divides_where_that_pays_and_says_the_same_texts(log: Log) -> None:
    in_turn = simulated(log, 1, overlap="none")
    found = simulated(log, 1, overlap="joint", partition="auto")
    assert in_turn.device is not None and found.device is not None
    divided_s = sum(seconds for split, seconds in found.device.used_s.items() if split.at_once)
    assert divided_s > 0.5 * sum(found.device.used_s.values()), "most of a draft is right, and a step hides it"
    assert end_s(found) < 0.85 * end_s(in_turn)
    for world in (in_turn, found):
        ends = [world.store.snapshot(record.id) for record in world.ended]
        assert all(end.tokens == log.texts[int(end.record.id.partition(".")[0])].tokens for end in ends)


def test_the_controller_leaves_the_device_whole_where_both_sides_hinder_each_other(log: Log) -> None:
    dear = SHARING.model_copy(update={"kappa": 3.0})
    variant = Variant("", {**COMMON, "lengths": "fixed:2", "overlap": "joint", "partition": "auto"}, is_steered=False)
    world = run(stated(log, dear), variant, Setting(streams=1, shared=dear), None, model_free)
    assert world.device is not None
    whole_s = world.device.used_s[world.device.all[0]]
    assert whole_s > 0.9 * sum(world.device.used_s.values())


def end_s(world: World) -> float:
    return max(world.store.snapshot(record.id).stats.last_token_s or 0.0 for record in world.ended)
