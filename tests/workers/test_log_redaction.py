"""Test that no line of Celery's quotes a message that it drops."""

import json
import subprocess
import sys

from app.config import ROOT


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
