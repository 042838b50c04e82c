"""Test the driver: ways over a recording, and of a tiny target in this process."""

import json
from pathlib import Path

import pytest

from app.config import ROOT
from lab.run import main
from tests.lab.simulate.made import STEP_S, made_log
from tests.workers.tiny import make_model


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the flags of a simulation over a small recording."""
    monkeypatch.setenv("PACELINE_PHRASES", "none")
    monkeypatch.setattr("lab.simulated.with_target", lambda log: log)
    made_log().write(tmp_path / "log.json.gz")
    return ["--in", "simulated", "--log", str(tmp_path / "log.json.gz"), "--prompts", "3"]


def test_ways_over_a_recording(recorded: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert (
        main([*recorded, "--ways", "vanilla", "coder x 2", "--streams", "2", "--blocks", "1", "--out", str(out)]) == 0
    )
    found = json.loads(out.read_text())
    assert [*found["ways"]] == ["off", "vanilla", "coder x 2"] and found["streams"] == 2
    assert found["ways"]["off"]["tokens_per_s"] == pytest.approx(2 / STEP_S, rel=0.05)
    assert all(own["requests"] == 6 for own in found["ways"].values()), "the warming-up ones are not counted"


def test_requests_at_rates_and_a_comparison(
    recorded: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*recorded, "--ways", "pace, models alone", "--rates", "0.2", "2", "--seconds", "20"]
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert main([*flags, "--out", str(first)]) == 0
    assert main([*flags, "--slowdown", "2", "--vs", str(first), "--out", str(second)]) == 0
    assert "of the other" in capsys.readouterr().out
    found = json.loads(second.read_text())
    assert 10 < found["ways"]["off"]["requests"] < 80
    assert found["compared"]["ratio"]["off"] == pytest.approx(0.5, rel=0.1)


def test_a_simulation_is_fitted_to_a_result(recorded: list[str], tmp_path: Path) -> None:
    like, out = tmp_path / "like.json", tmp_path / "out.json"
    assert main([*recorded, "--ways", "vanilla", "--slowdown", "1.5", "--out", str(like)]) == 0
    deployed = json.loads(like.read_text()) | {"place": {"nodes": [["coder"], ["writer"]], "hop_ms": 0.5}}
    like.write_text(json.dumps(deployed))
    assert main([*recorded, "--ways", "vanilla", "cosine", "--like", str(like), "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["compared"]["over off"]["vanilla"][0] == pytest.approx(
        found["compared"]["over off"]["vanilla"][1], abs=0.1
    )
    assert not found["compared"]["apart"]
    assert found["setting"]["slowdown"] == pytest.approx(1.5, rel=0.02)
    assert found["compared"]["ratio"].keys() == {"off", "vanilla"} and not found["compared"]["not close"]


def test_beside_a_stated_target_everything_costs_what_was_measured(recorded: list[str], tmp_path: Path) -> None:
    stated, out = ROOT / "lab" / "costs" / "stated-30ms.json", tmp_path / "out.json"
    assert main([*recorded, "--ways", "vanilla", "--costs", str(stated), "--out", str(out)]) == 0
    setting = json.loads(out.read_text())["setting"]
    assert all(setting[name] > 0.0 for name in ("host_s", "trees_s", "mail_s", "jobs_s", "cores"))


def test_a_tiny_target_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "target", idle_layers=16, fused=True)
    for name in ("north", "south"):
        make_model(tmp_path / name, fused=True)
    monkeypatch.setenv("PACELINE_MODEL", str(tmp_path / "target"))
    monkeypatch.setenv("PACELINE_DRAFTERS", f"{tmp_path / 'north'},{tmp_path / 'south'}")
    monkeypatch.setenv("PACELINE_KV_BYTES", str(2**26))
    monkeypatch.setenv("PACELINE_PREFIX_CACHE", "0")
    out = tmp_path / "out.json"
    flags = ["--in", "process", "--prompts", "1", "--max-tokens", "8", "--blocks", "1", "--out", str(out)]
    assert main([*flags, "--ways", "north x 2", "cosine without fusion", "--streams", "2"]) == 0
    ways = json.loads(out.read_text())["ways"]
    assert ways["off"]["drafted_a_round"] == 0.0 < ways["north x 2"]["drafted_a_round"]
    assert set(ways["north x 2"]["by_drafter"]) == {"north"}
    assert main([*flags, "--ways", "fixed:2", "--rates", "3", "--seconds", "1"]) == 0
    ways = json.loads(out.read_text())["ways"]
    assert ways["fixed:2"]["first_token_s"] < ways["fixed:2"]["request_s"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--streams", "0"], "'0' is no whole number from 1"),
        (["--hosts", "99"], "at most 32 hosts"),
        (["--rates", "0"], "rates are more"),
    ],
)
def test_a_wrong_flag_is_refused(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--in", "process", *flags])
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "sentence"), [(["--prompts", "9"], "one has 4"), (["--ways", "nothing"], "no way 'nothing'")]
)
def test_what_cannot_be_run_is_refused_in_a_sentence(
    recorded: list[str], flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*recorded, *flags]) == 1
    assert sentence in capsys.readouterr().err
