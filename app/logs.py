"""Write a process's log as lines of text or of JSON, without prompts and answers.

    {"time": "2026-11-22T04:50:29.123Z", "level": "INFO", "logger": "workers.deployment", "node": "web-1",
     "message": "admitted: 38 prompt tokens, at most 60", "request_id": "17b3...", "error": traceback}

A record's other attributes are left out: Celery puts a task's arguments there.
"""

import copy
import json
import logging
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from app.config import Settings

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# A caller may choose a task's id: it must neither begin a line nor move a terminal's cursor.
ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
CHATTY = ("celery.worker.strategy", "celery.app.trace", "celery.beat")  # these log a line for each doorbell or tick
STARTING = logging.getLogger("starting")  # what a process does before it serves: `up` shows its last line
STAGE_LOGGERS = (STARTING.name, "kernels.jit")  # of such lines
AGAIN_S = 60.0  # after which a traceback is written again
COUNTED_S = 1.0  # between two lines that count it
MOST_SEEN = 100  # tracebacks


def configure(settings: Settings) -> None:
    handler = OneTraceback()
    handler.setFormatter(Json(settings.node) if settings.log_format == "json" else Text(TEXT))
    logging.basicConfig(level=settings.log_level, handlers=[handler])
    logging.captureWarnings(True)
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.root.level))


@dataclass(slots=True)
class _Seen:
    written_s: float
    kind: str
    count: int = 0  # not told yet
    last: logging.LogRecord | None = None  # of these


class OneTraceback(logging.StreamHandler[TextIO]):
    """Write a traceback once in AGAIN_S; in between count it, in a line without it every COUNTED_S."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, _Seen] = {}  # by a hash of kind and lines of code

    def emit(self, record: logging.LogRecord) -> None:  # with the handler's lock held
        kind, _, trace = record.exc_info or (None, None, None)
        if kind is not None:
            name, now = kind.__qualname__, time.monotonic()
            lines = hash((name, *((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace))))
            seen = self._seen.get(lines)
            if seen is not None and now - seen.written_s < AGAIN_S:
                self._count(seen, record)
                return
            if seen is not None:
                self._tell(self._seen.pop(lines))
            if len(self._seen) >= MOST_SEEN:
                del self._seen[next(iter(self._seen))]
            self._seen[lines] = _Seen(now, name)
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # no room for a line: none for a traceback about it either
            super().handleError(record)

    def close(self) -> None:
        for seen in self._seen.values():
            self._tell(seen)
        super().close()

    def _count(self, seen: _Seen, record: logging.LogRecord) -> None:
        if seen.last is None:
            timer = threading.Timer(COUNTED_S, self._tell, [seen])
            timer.daemon = True
            with suppress(RuntimeError):  # no room for a thread, perhaps the very error: told later
                timer.start()
        seen.count += 1
        seen.last = copy.copy(record)
        seen.last.exc_info = seen.last.exc_text = None  # a frame may hold much

    def _tell(self, seen: _Seen) -> None:
        self.acquire()
        try:
            if seen.last is not None:
                seen.last.msg = f"{seen.last.getMessage()} ({seen.kind} as before, {seen.count} of them)"
                seen.last.args = None
                super().emit(seen.last)
            seen.count, seen.last = 0, None
        finally:
            self.release()


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
