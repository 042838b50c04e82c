"""Test the streams' benchmark on a real web process and Redis: every event of every reader, and what it counts."""

import json
from pathlib import Path

import pytest

from bench.streams.run import main, parse_args


def test_every_reader_of_every_stream_has_every_event(tmp_path: Path) -> None:
    out = tmp_path / "streams.json"
    words = "--streams 8 --readers 2 --verifiers 2 --events-per-s 4 --seconds 3 --silent-s 1 --every 0.5"
    main([*words.split(), "--out", str(out)])
    (found,) = json.loads(out.read_text())["paces"]
    assert (found["streams"], found["wrong"], found["commits that failed"]) == (8, 0, 0)
    assert found["frames"] >= 8 * 4 and found["web us an event"] > 0.0
    assert set(found["processes"]["growth"]) == {"memory", "files", "threads", "connections"}
    assert all(calls["p50"] > 0.0 for calls in found["small calls, s"].values())


@pytest.mark.parametrize("wrong", [["--streams", "0"], ["--events-per-s", "0"], ["--seconds", "-1"]])
def test_what_cannot_be_measured_is_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(wrong)
