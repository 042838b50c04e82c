"""Test predictions of live runs and what is said of them, over a small log made by hand."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from lab.deployed.predict import FITTED, FITTED_MAIL, PAUSE_S, in_order, in_turn, predict, run
from lab.deployed.report import deviations, rate, table
from lab.deployed.run import arrivals, asked

from lab.simulate.events import Machine, Network
from lab.simulate.log import Log
from lab.simulate.models import SimClock
from lab.simulate.world import Setting
from lab.ways import OFF, Variant, fixed
from tests.lab.simulate.test_run import LENGTH, STEP_S, TOKEN_S, log

__all__ = ["log"]  # a fixture
HOST_S, TREES_S, MAIL_S, HOP_MS = 0.003, 0.0015, 0.001, 2.0
SLOWDOWN = 1.5  # of the live run's steps
LIVE_S = SLOWDOWN * STEP_S
ARMS = [Variant(OFF, {"plan": "off"}), fixed("coder", 3, FITTED), Variant("specinfer", {"plan": "specinfer"})]


def vanilla_rate(mail_s: float) -> float:
    """Return the mean tokens/s of a drafter that is right in half of the texts: 4 tokens a round, and 1."""
    round_s = LIVE_S * (1 + 3 / 63) + 3 * TOKEN_S + 2e-3 * HOP_MS + HOST_S + mail_s
    return sum(LENGTH / (LIVE_S + HOST_S + rounds * round_s) for rounds in (10, LENGTH - 1)) / 2


def fused_rate(log: Log, nodes: tuple[tuple[str, ...], ...]) -> float:
    """Return the mean tokens/s of the arm of all drafters, simulated with the times that are to be found."""
    hop_s = 1e-3 * HOP_MS
    setting = Setting(
        streams=1, hop_s=hop_s, nodes=nodes, is_one_core=True, is_hub=True, slowdown=SLOWDOWN, host_s=HOST_S,
        trees_s=TREES_S, mail_s=MAIL_S,
    )  # fmt: skip
    ends = run(log, ARMS[2], setting, {"prompts": 3, "warm_up": 1, "blocks": 2})
    return sum(map(rate, ends)) / len(ends)


def measured(log: Log, nodes: tuple[tuple[str, ...], ...]) -> dict[str, Any]:
    """Return a live run's file: plain decoding takes a step and our own Python a token."""
    found = {
        "place": {"nodes": nodes, "hop_ms": HOP_MS},
        "streams": 1,
        "texts": {"prompts": 3, "warm_up": 1, "blocks": 2, "max_tokens": LENGTH},
        "arms": {arm.name: {"stream_tokens_per_s": 1.0 / (LIVE_S + HOST_S)} for arm in ARMS}
        | {
            FITTED: {"stream_tokens_per_s": vanilla_rate(TREES_S + MAIL_S)},
            FITTED_MAIL: {"stream_tokens_per_s": fused_rate(log, nodes)},
        },
        "mean_ms": {OFF: {"step": 1e3 * LIVE_S}},
        "fingerprint": "",
    }
    with pytest.raises(SystemExit, match="other texts"):
        predict(log, found, ARMS)
    return found | {"fingerprint": fingerprint_of(log)}


def fingerprint_of(log: Log) -> str:
    texts = [list(log.texts[i].tokens) for i in in_order(log, range(3))]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def test_the_time_of_our_own_python_is_fitted(log: Log) -> None:
    found = predict(log, measured(log, (("coder",), ("writer",))), ARMS)
    assert found["slowdown"] == pytest.approx(SLOWDOWN, rel=0.01)
    assert found["host_ms"] == pytest.approx(1e3 * HOST_S, rel=0.02)
    plain, drafted = found["arms"][OFF], found["arms"]["vanilla"]
    assert plain["stream_tokens_per_s"] == pytest.approx(1.0 / (LIVE_S + HOST_S), rel=0.01)
    assert drafted["requests"] == 6, "the warming-up ones are not counted"
    assert drafted["by_drafter"]["coder"][1] > 0
    assert (plain["model_rounds"], drafted["model_rounds"]) == (0.0, pytest.approx(1.0, abs=0.1))
    assert drafted["stream_tokens_per_s"] == pytest.approx(vanilla_rate(TREES_S + MAIL_S), rel=0.02)
    assert found["mail_ms"] == pytest.approx(1e3 * MAIL_S, rel=0.25)
    assert found["trees_ms"] + found["mail_ms"] == pytest.approx(1e3 * (TREES_S + MAIL_S), rel=0.25)


def test_nodes_on_one_core_wait_for_each_other(log: Log) -> None:
    apart = predict(log, measured(log, (("coder",), ("writer",))), ARMS)["arms"]["specinfer"]
    setting = Setting(streams=1, hop_s=1e-3 * HOP_MS, nodes=(("coder",), ("writer",)), host_s=HOST_S, slowdown=SLOWDOWN)
    counts = {"prompts": 3, "warm_up": 1, "blocks": 2}
    seconds = {
        shared: sum(
            (end.stats.last_token_s or 0.0) - end.record.created_s
            for end in run(log, ARMS[2], replace(setting, is_one_core=shared), counts)
        )
        for shared in (False, True)
    }
    rounds = 6 * 40 / apart["tokens_a_round"]
    assert seconds[True] - seconds[False] == pytest.approx(rounds * 4 * TOKEN_S, rel=0.3)


def test_a_node_that_calls_a_store_elsewhere_takes_mail_a_trip_later() -> None:
    network, seen = Network(hop_s=1.0), []
    clock = SimClock()

    def handle(mail: list[str]) -> float | None:
        seen.append((clock.time(), mail))
        clock.now_s += 5.0
        return None

    network.add(Machine("node", clock, handle, calls_s=4.0))
    for at_s in (10.0, 12.0, 40.0):
        network.send("node", "job", at_s)
    network.run(lambda: len(seen) == 3)
    assert seen == [(11.0, ["job"]), (20.0, ["job"]), (41.0, ["job"])], "posted and asked, and at once when idle"


def test_a_deviation_names_the_arms_that_are_outside_and_pairs_that_change_places() -> None:
    live = {"off": 10.0, "vanilla": 12.0, "cosine": 9.8}
    simulated = {"off": 10.0, "vanilla": 9.9, "cosine": 10.2}
    found = deviations(
        {
            "arms": {name: {"stream_tokens_per_s": own} for name, own in live.items()},
            "predicted": {"arms": {name: {"stream_tokens_per_s": own} for name, own in simulated.items()}},
        }
    )
    assert found["outside"] == ["vanilla"]
    assert found["pairs apart"] == 2, "cosine and off differ by 2 %"
    assert found["pairs that change places"] == [["vanilla", "off"], ["vanilla", "cosine"]]


def test_a_papers_arm_that_hardly_asked_models_is_marked_in_the_table() -> None:
    row = {"stream_tokens_per_s": 1.0, "tokens_a_round": 1.0, "by_drafter": {}, "over off": {"mean": 1.0, "lower": 0.9}}
    arms = {"cosine": {**row, "model_rounds": 0.25}, "vanilla": {**row, "model_rounds": 0.95}, "faser": row}
    shown = table({"streams": 1, "place": {"hop_ms": 1.0}, "arms": arms})
    assert "| cosine (models in 25% of rounds) | 1.0 | 1.00 (0.90) | 1.00 | 25% |" in shown
    assert "| vanilla | 1.0 | 1.00 (0.90) | 1.00 | 95% |" in shown
    assert "| faser | 1.0 | 1.00 (0.90) | 1.00 |  |" in shown, "a file from before it was counted"


def test_requests_at_stated_times_come_in_blocks_with_a_pause_between() -> None:
    assert in_turn([[1.0, 2.5], [0.5]]) == [1.0, 2.5, 2.5 + PAUSE_S + 0.5]
    block = [("code", "a"), ("prose", "x")]
    times = arrivals(0.5, block, 1)
    assert len(times) == 2 and 0.0 < times[0] < times[1]
    assert times == arrivals(0.5, block, 1) != arrivals(0.5, block, 2)


def test_a_prediction_has_requests_come_as_they_came_live(log: Log) -> None:
    """Far apart each has the target to itself; all at once they share it."""
    setting = Setting(streams=1, nodes=(("coder",), ("writer",)))
    texts = {"prompts": 3, "warm_up": 1, "blocks": 2}
    apart = [[100.0 * i for i in range(count)] for count in (2, 6)]
    seconds = {}
    for name, times in (("apart", apart), ("at once", [[0.0] * len(block) for block in apart])):
        ends = run(log, ARMS[0], setting, {**texts, "arrivals_s": times})
        seconds[name] = [(end.stats.last_token_s or 0.0) - end.record.created_s for end in ends]
    assert seconds["apart"] == pytest.approx([LENGTH * STEP_S] * 6, rel=0.01)
    assert min(seconds["at once"]) > 1.01 * max(seconds["apart"])


def test_the_counted_prompts_come_in_blocks_and_the_warming_up_ones_are_others() -> None:
    prompts = {"code": ("a", "b", "c"), "prose": ("x", "y", "z")}
    warm_up, blocks = asked(prompts, 2, 1, 2)
    assert warm_up == [("code", "c"), ("prose", "z")]
    assert blocks == [[("code", "a"), ("prose", "x")], [("code", "b"), ("prose", "y")]]
