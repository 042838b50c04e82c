"""Redact Celery's log, whose error lines quote messages and so prompts."""

import logging

from celery.apps import worker
from celery.worker.consumer import consumer

QUOTING = {
    consumer.UNKNOWN_FORMAT: "dropped a message that is no task",
    consumer.UNKNOWN_TASK_ERROR: "dropped a task that is not registered",
    consumer.INVALID_TASK_ERROR: "dropped a task whose message is not sound",
    consumer.MESSAGE_DECODE_ERROR: "dropped a message that cannot be decoded",
}
ETA = "Couldn't convert ETA"
LOGGERS = ("celery.worker.consumer.consumer", "celery.worker.strategy")


def redact_celery_log() -> None:
    worker.safe_say = lambda *_: None
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_without_quotation)


def _without_quotation(record: logging.LogRecord) -> bool:
    redacted = QUOTING.get(str(record.msg))
    if redacted is None and str(record.msg).startswith(ETA):
        redacted = "dropped a task whose ETA is no time"
    if redacted is not None:
        record.msg, record.args, record.exc_info = redacted, None, None
    return True
