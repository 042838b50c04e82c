"""Test ways of a tiny target with drafters on two hosts: same texts, tokens shared over the cables."""

import json
import os
import shutil
from pathlib import Path

import pytest

from app.config import Settings
from lab.deployed.deployment import settings_of
from lab.deployed.network import Host, entered, lacking, star
from lab.run import main
from lab.ways import WAYS, fixed
from tests.workers.tiny import make_model

HOP_MS = 2.0


def test_without_root_the_run_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["--in", "deployed"]) == 1
    assert "needs root" in capsys.readouterr().err


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/bin/{tool}")
    assert lacking() == "needs tc (packages iproute2, util-linux and hostname)"


def test_a_core_and_a_host_name_are_in_a_command() -> None:
    command = Host("there", "192.0.2.2", "192.0.2.1").command("true", core=1)
    assert command[:4] == ["ip", "netns", "exec", "there"]
    assert command[-4:] == ["taskset", "--cpu-list", "1", "true"]


@pytest.mark.parametrize("name", ["pace without beat", "pace, lookup alone", "cosine without fusion"])
def test_a_way_that_no_setting_names_is_not_deployed(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be deployed"):
        settings_of(WAYS[name], Settings())


def test_the_drafters_of_a_way_are_found_by_their_folders() -> None:
    settings = Settings(drafters=("/models/north", "south"))
    assert settings_of(fixed("north", 2), settings).drafters == ("/models/north",)
    assert settings_of(WAYS["pace, models alone"], settings).plan.model_free is False


@pytest.fixture
def allowed() -> None:
    """Skip where this machine cannot have such hosts."""
    why = lacking()
    if why is None and len(os.sched_getaffinity(0)) < 2:
        why = "needs two cores"
    try:
        if why is None:
            with star(f"paceline-try-{os.getpid()}", 1, 1e8) as (hub, _), entered(hub):
                pass
    except OSError as error:
        why = str(error)
    if why is not None:
        pytest.skip(why)


@pytest.mark.extended  # network namespaces
def test_drafters_on_two_hosts_guess_together(allowed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "target", idle_layers=16, fused=True)
    for name in ("north", "south"):
        make_model(tmp_path / name, fused=True)
    monkeypatch.setenv("PACELINE_MODEL", str(tmp_path / "target"))
    monkeypatch.setenv("PACELINE_DRAFTERS", f"{tmp_path / 'north'},{tmp_path / 'south'}")
    monkeypatch.setenv("PACELINE_KV_BYTES", str(2**26))
    out, cores = tmp_path / "hosts.json", os.sched_getaffinity(0)
    wanted = ["--in", "deployed", "--prompts", "1", "--warm-up", "1", "--blocks", "1", "--max-tokens", "24"]
    wanted += ["--ways", "cosine"]
    try:
        assert main([*wanted, "--hop-ms", str(HOP_MS), "--out", str(out)]) == 0
    finally:
        os.sched_setaffinity(0, cores)
    found = json.loads(out.read_text())
    assert found["place"]["hop_ms"] >= HOP_MS
    assert found["place"]["nodes"] == [["north"], ["south"]], "by their names, as a recording has them"
    assert found["ways"]["off"]["drafted_a_round"] == 0.0 < found["ways"]["cosine"]["drafted_a_round"]
    assert set(found["ways"]["cosine"]["by_drafter"]) == {"north", "south"}
    assert found["ways"]["off"]["model_rounds"] == 0.0 < found["ways"]["cosine"]["model_rounds"]
    nodes = found["ways"]["cosine"]["nodes"]
    assert len({node["host"] for node in nodes.values()}) == 2, "each on a host of its own"
    assert all(node["shared_guesses"] > 0 for node in nodes.values())
    assert not found["ways"]["off"]["nodes"]
