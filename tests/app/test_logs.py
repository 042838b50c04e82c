"""Test log lines: event and request, no prompt."""

import json
import logging
import sys

import pytest

from app.logs import TEXT, Json, Text, of


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


@pytest.mark.parametrize("made", [record("gone", **of("a\n\x1b[2K\u2028b")), record("gone: %s", "a\n\x1b[2K\u2028b")])
def test_an_id_neither_begins_a_line_nor_moves_the_cursor(made: logging.LogRecord) -> None:
    line = Text(TEXT).format(made)
    assert r"a\n\x1b[2K\u2028b" in line and line.isprintable()
