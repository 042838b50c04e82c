"""Test the section that runs kernels under compute-sanitizer, with a stand-in for the tool."""

import subprocess
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sanitizer = pytest.importorskip("bench.gpu.sections.sanitizer", reason="Triton is not made for this machine")
from bench.gpu.setting import Figures, Setting  # noqa: E402


@pytest.fixture
def setting() -> Setting:
    return Setting(torch.device("cuda"), False, None, {}, ends_s=time.perf_counter() + 60)


def tool(monkeypatch: pytest.MonkeyPatch, bad: str) -> list[list[str]]:
    """Put a tool in place that finds an error in one kernel by one check; return its command lines, as they come."""
    calls: list[list[str]] = []

    def run(command: list[str], **rest: Any) -> SimpleNamespace:
        calls.append(command)
        is_bad = all(any(word in part for part in command) for word in bad.split())
        return SimpleNamespace(
            returncode=sanitizer.FOUND * is_bad, stdout=f"========= ERROR SUMMARY: {int(is_bad)} errors\n", stderr=""
        )

    monkeypatch.setattr(sanitizer.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_every_kernel_that_writes_in_place_is_checked_for_stray_accesses_and_races(
    monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    calls, found = tool(monkeypatch, "none of them"), Figures()
    sanitizer.measure(setting, found)
    assert len(calls) == len(found) == 6
    assert found["kv_commit, racecheck"] == {"status": 0, "summary": "ERROR SUMMARY: 0 errors", "output": ""}


def test_an_error_that_the_tool_finds_fails_the_section(monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    tool(monkeypatch, "racecheck rotary_store")
    with pytest.raises(AssertionError, match=r"found errors: rotary_store, racecheck$"):
        sanitizer.measure(setting, {})


def test_a_machine_without_the_tool_says_so(monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    found = Figures()
    monkeypatch.setattr(sanitizer.shutil, "which", lambda name: None)
    sanitizer.measure(setting, found)
    assert found == {"left_out": "compute-sanitizer is not here, or there is no GPU"}
