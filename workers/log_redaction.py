"""What Celery should not say: it quotes a message that it cannot take, whole, and a prompt may be in it; and it prints
past the log, which may be JSON, that it shuts down."""

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
    """From now on this process's log says that a message was dropped, not what was in it; and nothing is printed."""
    worker.safe_say = lambda *_: None
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_without_quotation)


def _without_quotation(record: logging.LogRecord) -> bool:
    said = QUOTING.get(str(record.msg))
    if said is None and str(record.msg).startswith(ETA):
        said = "dropped a task whose ETA is no time"
    if said is not None:
        record.msg, record.args, record.exc_info = said, None, None
    return True
