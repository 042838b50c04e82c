"""Test the settings."""

import json
from pathlib import Path

import pytest

from lab import settings
from lab.settings import CASES, DATA, compared, log_of, main, recording
from lab.simulate.log import Log

SHORT = "pair .1 at 1"


@pytest.fixture
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(name: str) -> Log:
        log = Log.read(DATA / f"{name}.json.gz")
        drafters = {d: own.model_copy(update={"guesses": own.guesses[:3]}) for d, own in log.drafters.items()}
        return log.model_copy(update={"texts": log.texts[:3], "drafters": drafters})

    monkeypatch.setattr(settings, "recording", read)


@pytest.mark.usefixtures("few_texts")
def test_a_setting_is_run_and_compared_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert main(["--orders", "1", "--only", SHORT, "--out", str(first)]) == 0
    assert main(["--orders", "1", "--only", SHORT, "--vs", str(first), "--out", str(second)]) == 0
    assert "least 1.000, geometric mean 1.000" in capsys.readouterr().out
    rates = json.loads(first.read_text())["settings"]
    assert rates == json.loads(second.read_text())["settings"]
    (own,) = rates.values()
    assert all(own[way]["pace"][0] > 1.5 * own[way]["off"][0] for way in ("tables", "models", "in turn"))


def test_settings_have_their_own_costs() -> None:
    assert len({case.name for case in CASES}) == 18
    quarter = next(case for case in CASES if case.name == "pair .25 at 4")
    log = log_of(quarter)
    assert set(log.drafters["qwen2.5-coder-0.5b"].token_s.values()) == {0.0075}
    assert log.costs != recording("qwen").costs


def test_only_settings_of_both_results_are_compared() -> None:
    old = {"a": {way: {"off": [1.0], "pace": [2.0]} for way in ("tables", "models")}}
    new = {"a": {way: {"off": [1.0], "pace": [1.0]} for way in ("tables", "models")}, "b": old["a"]}
    assert [*compared(new, old)] == [("a, tables", 0.5), ("a, models", 0.5)]
