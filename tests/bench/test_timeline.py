"""Test the timeline's picture from files of spans."""

import json
from pathlib import Path

import pytest

from bench.timeline import active, main, read

SPANS = [
    {"node": "verify-1", "kind": "verify", "start_s": 0.0, "end_s": 0.1, "sequences": 0},
    {"node": "verify-1", "kind": "verify", "start_s": 10.0, "end_s": 10.4, "sequences": 2},
    {"node": "draft-1", "kind": "draft", "start_s": 10.4, "end_s": 10.5, "sequences": 2},
    {"node": "verify-1", "kind": "verify", "start_s": 99.0, "end_s": 99.1, "sequences": 0},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(span) + "\n" for span in SPANS))
    return tmp_path


def test_the_picture_is_written_and_busy_parts_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "picture.png"
    assert main([str(folder), "--out", str(out), "--seconds", "0.2"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size < 150_000
    printed = capsys.readouterr().out
    assert "80.0%" in printed and "20.0%" in printed, "of the half second from the first work to the last"


def test_idle_looks_before_and_after_are_left_out(folder: Path) -> None:
    assert [span.start_s for span in active(read(folder))] == [10.0, 10.4]


def test_a_folder_without_spans_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "PACELINE_SPANS" in capsys.readouterr().err
