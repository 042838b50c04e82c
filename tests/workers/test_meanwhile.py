"""Test `bench load meanwhile`: clients see nothing of a killed verifier, and a failing command is reported."""

import json
import sys
from pathlib import Path

import pytest

from bench.load.run import main
from tests.workers.cluster import Cluster


def test_a_verifier_is_killed_and_no_request_is_lost(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "meanwhile.json"
    kill = f"import os; os.kill({cluster.pid('verify')}, 9); print('killed')"
    assert main([*few(cluster.url), "--out", str(out), "--", sys.executable, "-c", kill]) == 0
    assert " s  killed\n" in capsys.readouterr().out
    report = json.loads(out.read_text())
    assert report["exit_status"] == 0
    for kind in ("streams", "answers"):
        assert report[kind]["right"] > 0
        assert not report[kind]["wrong"] and not report[kind]["failed"] and not report[kind]["lost"]
    longest = [silence["lasted_s"] for silence in report["streams"]["silences"]]
    assert longest == sorted(longest, reverse=True)


def test_a_command_that_fails_is_reported(cluster: Cluster) -> None:
    assert main([*few(cluster.url), "--", sys.executable, "-c", "raise SystemExit(3)"]) == 1


def few(url: str) -> list[str]:
    words = ["--clients", "1", "--requests", "2", "--max-tokens", "24", "--after", "1"]
    return ["meanwhile", "--url", url, *words]
