"""Write a process's log as lines of text or of JSON, without prompts and answers.

    {"time": "2026-11-22T04:50:29.123Z", "level": "INFO", "logger": "workers.deployment", "node": "web-1",
     "message": "admitted: 38 prompt tokens, at most 60", "request_id": "17b3...", "error": traceback}

A record's other attributes are left out: Celery puts a task's arguments there.
"""

import json
import logging
import time

from app.config import Settings

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# A caller may choose a task's id: it must neither begin a line nor move a terminal's cursor.
ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
CHATTY = ("celery.worker.strategy", "celery.app.trace", "celery.beat")  # these log a line for each doorbell or tick


def configure(settings: Settings) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(Json(settings.node) if settings.log_format == "json" else Text(TEXT))
    logging.basicConfig(level=settings.log_level, handlers=[handler])
    logging.captureWarnings(True)
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.root.level))


class Text(logging.Formatter):
    """Write a line for each record, with the request's id before the message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", None)
        if request_id is not None:
            record.message = f"request {request_id}: {record.message}"
        record.message = record.message.rstrip().translate(ESCAPES)
        return super().formatMessage(record)


class Json(logging.Formatter):
    def __init__(self, node: str | None) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "node": self._node,
            "message": record.getMessage(),
            "request_id": getattr(record, "request_id", None),
            "error": self.formatException(record.exc_info) if record.exc_info else None,
        }
        return json.dumps({name: value for name, value in fields.items() if value is not None}, ensure_ascii=False)


def of(request_id: str) -> dict[str, str]:
    return {"request_id": request_id}
