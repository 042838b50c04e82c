"""Test log lines: event and request, no prompt."""

import json
import logging
import subprocess
import sys

import pytest

from app.config import ROOT
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


def test_celery_quotes_no_dropped_message() -> None:
    program = """
import logging
from celery.worker.consumer import consumer
from app import logs
from app.config import Settings
from workers.log_redaction import redact_celery_log
logs.configure(Settings(log_format="json", node="control-1"))
redact_celery_log()
quoting = [text for text in vars(consumer).values() if isinstance(text, str) and "body" in text and "%" in text]
assert len(quoting) == 4, quoting
for text in quoting:
    try:
        raise KeyError("a prompt")
    except KeyError:
        places = text.count("%s") + text.count("%r")
        consumer.logger.error(text, *["a prompt"] * places, exc_info=True)
eta = "Couldn't convert ETA %r to timestamp: %r. Task: %r"
logging.getLogger("celery.worker.strategy").error(eta, 1, 2, "a prompt")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert len(lines) == 5 and all(line["message"].startswith("dropped a ") for line in lines)
    assert "a prompt" not in done.stderr
