"""Test the live sweep over a tiny target: same texts in every arm, figures of the very requests
that were sent."""

import json
from pathlib import Path

import pytest

from bench.load.report import Served, Slo, figures
from bench.prompts import PROMPTS
from lab.sweep import Text, main, rate_figures, served, turned
from tests import fakes
from tests.app.verifier.parts import snapshot
from tests.workers.tiny import make_model


def one(total_s: float) -> Served:
    return Served("code", 1.0, 1.0 + total_s, 1.2, tokens=5, rounds=5)


def test_arms_are_compared_with_the_adaptive_one_by_request() -> None:
    runs = {"off": [[one(4.0), one(2.0)], [one(1.0)]], "full": [[one(2.0), one(1.0)], [one(0.5)]]}
    found = rate_figures(0.5, runs)
    assert found["requests"] == 3
    assert found["arm / adaptive"]["off"]["mean"] == pytest.approx(2.0)
    assert found["arms"]["full"]["mean_s"] == pytest.approx(3.5 / 3, abs=1e-3)


def test_prompts_that_come_round_again_are_counted() -> None:
    once = sum(map(len, PROMPTS.values()))
    texts = [Text.of(0.5 * i, once - 1 + i) for i in range(3)]
    assert [text.is_repeated for text in texts] == [False, True, True]
    ends = [snapshot(fakes.record([1], request_id=str(i)), 4, 0) for i in range(3)]
    found = figures(served(ends, texts, 0.0), 1.0, Slo(1.0, 1.0))
    assert (found["requests"], found["repeated"]) == (3, 2)


def test_the_order_of_the_arms_turns() -> None:
    assert [turned(["a", "b", "c"], by) for by in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_a_sweep_of_a_tiny_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "target", idle_layers=16, fused=True)
    make_model(tmp_path / "twin", fused=True)
    monkeypatch.setenv("PACELINE_MODEL", str(tmp_path / "target"))
    monkeypatch.setenv("PACELINE_DRAFTERS", str(tmp_path / "twin"))
    monkeypatch.setenv("PACELINE_KV_BYTES", str(2**26))
    out = tmp_path / "sweep.json"
    options = ["--rates", "3", "--lengths", "2", "--seconds", "1", "--repeats", "1", "--max-tokens", "8"]
    assert main([*options, "--out", str(out)]) == 0
    (rate,) = json.loads(out.read_text())["rates"]
    assert rate["arms"].keys() == {"off", "fixed 2", "full"}
    assert rate["arms"]["off"]["drafted_per_round"] == 0.0 < rate["arms"]["fixed 2"]["drafted_per_round"]
    assert all(arm["failed"] == 0 for arm in rate["arms"].values())
