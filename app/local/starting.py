"""Say what processes do that are not ready yet, by the last lines of their logs that tell."""

import json
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from app.local.children import Service
from app.logs import STAGE_LOGGERS

TAIL_BYTES = 8192
AS_TEXT = re.compile(rf"INFO (?:{'|'.join(map(re.escape, STAGE_LOGGERS))}): (.*)")


class Starting:
    """`logs` are read from their present ends on, so make it before the processes start."""

    def __init__(self, services: Sequence[Service], logs: Path, last_s: float | None) -> None:
        self._began_s = time.monotonic()
        self._last_s = last_s  # of the last start
        logged = ((service, logs / f"{service.name}.log") for service in services)
        self._logs = [(service, log, _size(log)) for service, log in logged]
        self._since_s: dict[str, tuple[str, float]] = {}  # by process: what it does, and since when

    def describe(self, waiting: Iterable[str]) -> str:
        """Name the roles that are waited for, what each does, and for how long."""
        now_s, roles = time.monotonic(), []
        for role in waiting:
            doing = [
                stage
                for service, log, start in self._logs
                if role in service.roles and (stage := self._doing(log, start))
            ]
            roles.append(f"{role} ({'; '.join(doing)})" if doing else role)
        past = "" if self._last_s is None else f" (last time {self._last_s:.0f} s)"
        return f"waiting {now_s - self._began_s:.0f} s{past} for {', '.join(roles)}"

    def stages(self) -> list[str]:
        """Return what the processes do, without times: while it changes, the start gets on."""
        return [text for text, _ in self._since_s.values()]

    def took_s(self) -> float:
        return time.monotonic() - self._began_s

    def _doing(self, log: Path, start: int) -> str | None:
        text, now_s = _last(log, start), time.monotonic()
        if text is None:
            return None
        before, since_s = self._since_s.get(log.name, ("", now_s))
        if text != before:
            self._since_s[log.name] = (text, now_s)
            return text
        return f"{text}, {now_s - since_s:.0f} s"


def _last(log: Path, start: int) -> str | None:
    size = _size(log)
    with log.open("rb") as file:
        file.seek(max(start if start <= size else 0, size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return next((stage for line in reversed(lines) if (stage := _stage(line))), None)


def _stage(line: str) -> str | None:
    if not line.startswith("{"):
        return found[1] if (found := AS_TEXT.search(line)) else None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return str(record.get("message")) if record.get("logger") in STAGE_LOGGERS else None


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0
