"""Test log lines: event and request, no prompt."""

import io
import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app import logs
from app.logs import MOST_SEEN, TEXT, Json, OneTraceback, Text, of
from tests.workers.cluster import wait_for


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("workers.deployment", logging.WARNING, __file__, 1, message, args, None)
    for name, value in extra.items():
        setattr(made, name, value)
    return made


def test_json_has_the_known_fields_alone() -> None:
    line = Json("web-1").format(record("dropped %s\nof them", 3, **of("r1"), data={"kwargs": "a prompt"}))
    found = json.loads(line)
    assert "\n" not in line and found.pop("time").endswith("Z")
    assert found == {
        "level": "WARNING",
        "logger": "workers.deployment",
        "node": "web-1",
        "message": "dropped 3\nof them",
        "request_id": "r1",
    }


def test_json_holds_the_traceback() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    assert "ValueError: wrong" in json.loads(Json(None).format(made))["error"]


@pytest.mark.parametrize("extra, end", [(of("r1"), "request r1: gone"), ({}, "workers.deployment: gone")])
def test_text_names_the_request(extra: dict[str, str], end: str) -> None:
    assert Text(TEXT).format(record("gone", **extra)).endswith(end)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_full_disk_costs_a_line_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    handler = OneTraceback()
    with pytest.raises(OSError), open("/dev/full", "w") as full:
        handler.setStream(full)
        handler.emit(record("gone"))
    assert capsys.readouterr().err == ""
    OneTraceback().emit(record("%d", "no number"))
    assert "TypeError" in capsys.readouterr().err, "a mistake of ours is told"


@pytest.fixture(params=[Text(TEXT), Json("web-1")], ids=["text", "json"])
def handler(request: pytest.FixtureRequest) -> OneTraceback:
    made = OneTraceback()
    made.setFormatter(request.param)
    made.setStream(io.StringIO())
    return made


def fail(handler: OneTraceback, name: str, kind: type[Exception] = KeyError) -> None:
    try:
        raise kind("wrong")
    except kind:
        made = record("failed: %s", name)
        made.exc_info = sys.exc_info()
    handler.handle(made)


def written(handler: OneTraceback) -> list[str]:
    """What was written before a handler that closes, and by it."""
    handler.close()
    return [line for line in text(handler).splitlines() if "failed: " in line]


def text(handler: OneTraceback) -> str:
    assert isinstance(handler.stream, io.StringIO)
    return handler.stream.getvalue()


def test_a_traceback_is_written_once_and_counted(handler: OneTraceback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "COUNTED_S", 600.0)  # a busy machine may take longer than the usual
    monkeypatch.setattr(logs, "AGAIN_S", 600.0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: fail(handler, "a"), range(918)))
    fail(handler, "last")
    fail(handler, "other", ValueError)
    first, other, again = written(handler)
    assert "failed: a" in first and "failed: other" in other
    assert "failed: last (KeyError as before, 918 of them)" in again
    assert text(handler).count("Traceback") == 2 and len(text(handler)) < 3000


def test_a_traceback_is_written_again_after_a_while(handler: OneTraceback, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(handler, "a")
    monkeypatch.setattr(logs, "AGAIN_S", 0.0)
    fail(handler, "a")
    assert len(written(handler)) == text(handler).count("Traceback") == 2


def test_a_repeated_traceback_is_counted_though_nothing_follows(
    handler: OneTraceback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "COUNTED_S", 0.0)
    fail(handler, "a")
    fail(handler, "b")
    wait_for(lambda: "failed: b (KeyError as before, 1 of them)" in text(handler))


def test_few_tracebacks_are_kept(handler: OneTraceback) -> None:
    for i in range(2 * MOST_SEEN):
        fail(handler, "a", type(f"Error{i}", (Exception,), {}))
    assert len(vars(handler)["_seen"]) == MOST_SEEN and len(written(handler)) == 2 * MOST_SEEN


@pytest.mark.parametrize("made", [record("gone", **of("a\n\x1b[2K\u2028b")), record("gone: %s", "a\n\x1b[2K\u2028b")])
def test_an_id_neither_begins_a_line_nor_moves_the_cursor(made: logging.LogRecord) -> None:
    line = Text(TEXT).format(made)
    assert r"a\n\x1b[2K\u2028b" in line and line.isprintable()
