"""Test the figures of requests: their arithmetic, and that simulations give them."""

import pytest

from app.messages import Event, Stats
from lab.testbeds.arms import ARMS, Arm, off
from lab.testbeds.figures import Figures, RequestTimes, Served, verified
from lab.testbeds.play import Load, loop, play
from lab.testbeds.texts import Wanted, made
from lab.testbeds.worlds import FOLDER, WorldSpec, read_world

ONCE = Load("all at once", 96, 96, [0.0] * 96)


def figures(*requests: RequestTimes) -> Figures:
    return Figures(requests, 10.0, 1.0, 0.0, 0.0, 1.0, 1.0)


def arm_of(paper: str, world: WorldSpec, name: str) -> Arm:
    return next(arm for arm in ARMS[paper](world) if arm.name == name)


def test_percentiles_are_those_of_each_time() -> None:
    own = figures(*(RequestTimes(float(i), i / 10, i / 100) for i in range(101)))
    assert own.record()["percentiles"] == {
        "request_s": [50.0, 95.0, 99.0],
        "first_token_s": [5.0, 9.5, 9.9],
        "token_s": [0.5, 0.95, 0.99],
    }
    assert own.request_s == 50.0 and own.token_s == pytest.approx(0.5)


def test_rounds_are_the_tokens_that_were_not_accepted() -> None:
    served = Served(drafted=40, accepted=10)
    served.add(2.0, RequestTimes(2.0, 0.5, 0.1), 15)
    served.add(4.0, RequestTimes(3.0, 0.5, 0.1), 15)
    own = Figures.of(served, 36.0, 1.0, "")
    assert (own.tokens_per_s, own.tokens_a_round, own.drafted, own.rejected) == (7.5, 1.5, 2.0, 0.75)
    assert own.cost == pytest.approx(1e4 / 7.5)


def test_what_ends_first_and_last_does_not_count() -> None:
    served = Served()
    for at_s in (9.0, 1.0, 2.0, 5.0, 4.0, 3.0):
        served.add(at_s, RequestTimes(at_s, 0.5, 0.1), 10)
    own = Figures.of(served, 1.0, 1.0, "", wave=2)
    assert [one.total_s for one in own.requests] == [3.0, 4.0] and own.tokens_per_s == 2 * 10 / 3.5


def test_rounds_with_room_are_those_behind_the_prompts_and_before_the_end() -> None:
    drafted = [(0, 0), (1, 4), (3, 8), (8, 9), (9, 9)]
    events = [Event(offset=offset, tokens=(1,), stats=Stats(drafted=total)) for offset, total in drafted]
    assert [*verified(events, 10, 4)] == [4, 4] and [*verified(events, 10, 1)] == [4, 4, 1]


def test_plain_decoding_has_no_drafts() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    own = play(world, off(), made(world, [Wanted("all", 8, 20)] * 6, 0), loop(3, 2, 1), 0)
    assert (own.tokens_a_round, own.drafted, own.rejected, len(own.requests)) == (1.0, 0.0, 0.0, 6)


def test_rows_leave_passes_early_where_that_pays() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    log = made(world, [Wanted("all", 8, 14)] * 96, 0)
    arm = arm_of("faser", world, "faser, lengths and exit")
    assert world.exit is not None
    free = world.exit.model_copy(update={"fixed_s": world.exit.fixed_s._replace(value=0.0)})
    dear = world.exit.model_copy(update={"fixed_s": world.exit.fixed_s._replace(value=1.0)})
    quick, slow = (play(world.model_copy(update={"exit": one}), arm, log, ONCE, 0) for one in (free, dear))
    whole = play(world, arm_of("faser", world, "faser, lengths"), log, ONCE, 0)
    assert quick.request_s < slow.request_s and whole.request_s < slow.request_s, "one look at a step of a size"


def test_pipeinfer_has_the_same_figures() -> None:
    world = read_world(FOLDER / "cosine-70b.json")
    arm = arm_of("cosine", world, "pipeinfer, mixture")
    log = made(world, [Wanted("finance", 8, 20)] * 4, 0)
    own = play(world, arm.at([{"length": 3}]), log, loop(2, 2, 1), 0)
    assert own.chosen == "length 3" and len(own.requests) == 4 and own.drafted > 0.0
