"""Test the measurement of a round's cost on a real deployment: known texts, time, and trips to Redis."""

import json
from pathlib import Path

import pytest

from bench.scale.run import main, parse_args


@pytest.mark.extended  # starts a deployment of its own
def test_every_token_is_known_and_counts_are_of_the_round(tmp_path: Path):
    out = tmp_path / "scale.json"
    point = "--requests 2 --contexts 40 --drafts 0 4 --step-ms 20 --seconds 1"
    assert main([*point.split(), "--out", str(out)]) == 0
    plain, drafted = json.loads(out.read_text())["points"]
    for found in (plain, drafted):
        assert found["wrong"] == 0 and found["rounds"] > 5
        assert 0.0 < found["ideal"] < 1.0
        assert found["cpu_us"]["verify"] > 0.0 and found["trips_a_round"]["verify"] >= 1.0
        assert found["redis"]["commands"] > 1.0
    assert plain["tokens_a_round"] == pytest.approx(1.0, abs=0.3), "counted a little before the rounds are"
    assert drafted["tokens_a_round"] > 1.5, "drafts are right seven times in ten"


@pytest.mark.parametrize("wrong", [["--requests", "0"], ["--rate", "1.5"], ["--drafts", "-1"], ["--step-ms", "0"]])
def test_what_cannot_be_measured_is_refused(wrong: list[str]):
    with pytest.raises(SystemExit):
        parse_args(wrong)
