"""Test the cost model of the baselines against closed forms and against the simulator."""

import numpy as np
import pytest

from lab.testbeds.arms import ARMS, Arm
from lab.testbeds.cost_model import LENGTHS, CostModel
from lab.testbeds.play import play, with_length
from lab.testbeds.roofline import step_costs
from lab.testbeds.sample import Fact, Fit, fitted, sampled
from lab.testbeds.texts import Wanted, made
from lab.testbeds.worlds import FOLDER, WorldSpec, read_world

PROMPT, OUTPUT = 16, 64


@pytest.fixture(scope="module")
def worlds() -> list[WorldSpec]:
    """The world as it stands, and two sampled ones."""
    base = read_world(FOLDER / "cosine-70b.json")
    return [base, *(base.with_values(values) for values in sampled(base, 2, 3))]


@pytest.fixture(scope="module")
def model(worlds: list[WorldSpec]) -> CostModel:
    return CostModel(worlds)


def test_plain_decoding_takes_a_pass_a_token(worlds: list[WorldSpec], model: CostModel) -> None:
    found = model.predict("off", 1, 1, OUTPUT)
    for i, world in enumerate(worlds):
        pass_s = step_costs(world).seconds(1) + world.target.host_s.value
        assert found.request_s[i] == pytest.approx(OUTPUT * pass_s, rel=0.01)
        assert found.tokens_per_s[i] == pytest.approx(OUTPUT / found.request_s[i])
    assert not found.rejected.any() and (found.verifying == 1.0).all()


@pytest.mark.parametrize(("name", "length"), [("off", 0), ("vanilla", 3), ("vanilla, mixture", 5), ("specinfer", 6)])
def test_the_simulator_agrees_within_some_per_cent(
    name: str, length: int, worlds: list[WorldSpec], model: CostModel
) -> None:
    predicted = model.predict(name, 4, PROMPT, OUTPUT, length or None)
    quotients = []
    for i, world in enumerate(worlds):
        log = made(world, [Wanted(domain, PROMPT, OUTPUT) for domain in world.domains * 4], 9)
        quotients.append(predicted.request_s[i] / play(world, _arm(world, name, length), log, 4, 0).request_s)
    assert quotients == pytest.approx([1.0] * len(worlds), abs=0.02 if name == "off" else 0.1)


def test_tokens_a_round_are_the_stated_ones_and_more_chains_give_more(
    worlds: list[WorldSpec], model: CostModel
) -> None:
    for i, world in enumerate(worlds):
        mixture = model.chains["vanilla, mixture"].tokens[:, i]
        assert 0.95 < mixture[LENGTHS.index(5)] / world.acceptance.mixture.value < 1.05
        assert (np.diff(mixture) >= 0.0).all()
        assert (model.chains["specinfer"].tokens[:, i] > model.chains["vanilla"].tokens[:, i]).all()


def test_samples_lie_within_their_bounds_and_fill_them() -> None:
    world = read_world(FOLDER / "cosine-70b.json")
    values = sampled(world, 40, 0)
    for place, (low, high, _) in world.free.items():
        column = [own[place] for own in values]
        assert low <= min(column) < max(column) <= high and len(set(column)) == 40
        assert world.with_values(values[0]).number(world.places(place)[0]).value == values[0][place]


def test_worlds_fit_that_agree_with_all_facts_and_the_first_one_chosen_is_in_the_middle() -> None:
    world = read_world(FOLDER / "cosine-70b.json")
    fast = Fact("off", 0.0, 13.0, "of this test", lambda model: model.predict("off", 1, 256, 128).request_s)
    never = Fact("never", 1.0, 2.0, "of this test", lambda model: 0.0 * model.predict("off", 1, 256, 128).request_s)
    some, none = fitted(world, [[fast], [fast, never]], 30, 0)
    assert 0 < some.fits.sum() < 30 and not none.fits.any() and none.chosen(3) == []
    chosen = some.chosen(4)
    assert len({*chosen}) == 4 and all(some.fits[i] for i in chosen)
    reads = sorted(some.values[i]["devices.a100.read_part"] for i in np.flatnonzero(some.fits))
    assert reads[0] < some.values[chosen[0]]["devices.a100.read_part"] < reads[-1]


def _arm(world: WorldSpec, name: str, length: int) -> Arm:
    arm = next(one for one in ARMS["cosine"].arms(world) if one.name == name)
    return with_length(arm, f"{arm.lengths[0].partition(':')[0]}:{length}") if arm.lengths else arm


def test_prices_choose_no_world() -> None:
    values = [{"a": float(i), "own.price_per_h": price} for i, price in enumerate((9.0, 9.0, 0.0, 9.0, 9.0, 5.0, 9.0))]
    fit = Fit([], None, values, np.ones(7, bool), {}, {})  # type: ignore[arg-type]
    assert fit.chosen(2) in ([3, 0], [3, 6])
