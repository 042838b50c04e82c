"""Test the figures of ways, over simulations of a small recording."""

from typing import Any

import pytest

from lab.load import Block, Load
from lab.report import check_same, compared, figures, fingerprint, summary, table
from lab.simulate.log import Log
from lab.simulate.world import Setting
from lab.simulated import SimulatedRunner, prompts_of
from lab.ways import OFF, WAYS, Variant
from tests.lab.simulate.made import LENGTH, STEP_S, made_log

CHAINS = Variant("vanilla", {"plan": "vanilla"}, drafters=("coder",))


@pytest.fixture
def log() -> Log:
    return made_log()


def result(log: Log, *ways: Variant) -> dict[str, Any]:
    blocks = Load(prompts=2, warm_up=0, blocks=2, streams=1).of(prompts_of(log))[1:]
    runners = {way.name: SimulatedRunner(way, log, Setting(streams=1)) for way in ways}
    ends = {name: [runner.run(block) for block in blocks] for name, runner in runners.items()}
    check_same({name: [end for block in own for end in block] for name, own in ends.items()})
    own = figures(blocks, ends, [OFF])
    return {
        "fingerprint": fingerprint(ends[OFF]),
        "ways": {name: {**own[name], **runners[name].report()} for name in runners},
    }


def test_figures_pair_the_same_requests(log: Log) -> None:
    found = result(log, WAYS[OFF], CHAINS)["ways"]
    assert found[OFF]["stream_tokens_per_s"] == pytest.approx(1.0 / STEP_S, rel=1e-3)
    assert found[OFF]["request_s"] == pytest.approx(LENGTH * STEP_S) and found[OFF]["requests"] == 4
    assert (found[OFF]["tokens_a_round"], found[OFF]["drafted_a_round"], found[OFF]["over"]) == (1.0, 0.0, {})
    chains = found["vanilla"]
    assert chains["domains"]["code"] > 2.0 * chains["domains"]["prose"], "at home it is always right"
    mean, lower, upper = chains["over"][OFF]
    assert lower < mean < upper and lower < 1.0 < upper, "faster in one domain, slower in the other"
    drafted, accepted = chains["by_drafter"]["coder"]
    assert 0 < accepted < drafted
    assert chains["model_rounds"] > 0.9


def test_a_papers_way_in_which_models_hardly_drafted_is_marked(log: Log) -> None:
    shown = table(result(log, WAYS[OFF], CHAINS, Variant("cosine", {"plan": "off"})))
    assert "| vanilla |" in shown and "| cosine (models in 0% of rounds) |" in shown


def test_a_result_is_compared_with_another_of_the_same_texts(log: Log) -> None:
    slow = log.model_copy(update={"costs": log.costs.replace("0.05", "0.06")})
    ways = (WAYS[OFF], CHAINS)
    first, second = result(log, *ways), result(slow, *ways)
    found = compared(second, first)
    assert found["ratio"][OFF] == pytest.approx(0.833, abs=0.002)
    assert OFF in found["not close"]
    off, chains = found["over off"].values()
    assert off == [1.0, 1.0] and chains[0] == second["ways"]["vanilla"]["over"][OFF][0] and not found["apart"]
    first["compared"] = compared(first, second)
    assert table(first).splitlines()[2].endswith("| 1.20 |")
    with pytest.raises(SystemExit, match="other texts"):
        compared(first, {**second, "fingerprint": ""})


def test_ways_that_change_places_are_named(log: Log) -> None:
    def one(**rates: float) -> dict[str, Any]:
        return {"fingerprint": "", "ways": {name: {"stream_tokens_per_s": own} for name, own in rates.items()}}

    found = compared(one(off=10.0, vanilla=9.9, cosine=10.2), one(off=10.0, vanilla=12.0, cosine=9.8))
    assert found["not close"] == ["vanilla"]
    assert found["change places"] == [["vanilla", "off"], ["vanilla", "cosine"]], "cosine and off differ by 2 %"


def test_other_tokens_are_no_figures(log: Log) -> None:
    runner = SimulatedRunner(WAYS[OFF], log, Setting(streams=1))
    first, second = (runner.run(Block((("code", text),), 1)) for text in ("0", "1"))
    assert summary(first)["requests"] == 1
    with pytest.raises(SystemExit, match="wrong"):
        check_same({OFF: first, "wrong": second})
