"""Rewrite Redis' append-only file after a failed write to its disk.

Valkey 9.1 goes on behind a gap of zeros in a file that it had rewritten, and its next start would fail
(`tests/app/store/test_append_only_file.py`).
"""

import logging
import re
import time
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import NoPermissionError, ResponseError

from app.system import make_whole

log = logging.getLogger(__name__)
REFUSED = "errorstat_MISCONF"  # calls that the server refused because it could not write to its disk
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 3600.0  # after a rewrite that failed: it takes room, and may fill the disk itself

_WORDS, _LENGTH, _GAP = re.compile(rb"\*(\d+)\r\n"), re.compile(rb"\$(\d+)\r\n"), re.compile(rb"\0+")


def close_gaps(path: Path) -> None:
    """Cut the zeros between commands out of a stopped server's file; all else stays, a broken end included."""
    data = path.read_bytes()
    if (
        not data.startswith(b"\0") and b"\r\n\0" not in data
    ):  # most files: to read all commands takes a second for 40 MB
        return
    pieces, begin, at = list[bytes](), 0, 0
    while at < len(data):
        if gap := _GAP.match(data, at):
            pieces.append(data[begin:at])
            begin = at = gap.end()
        elif (end := _end_of_command(data, at)) is None:
            break
        else:
            at = end
    if pieces:
        whole = b"".join([*pieces, data[begin:]])
        make_whole(path, lambda scratch: scratch.write_bytes(whole))


def _end_of_command(data: bytes, at: int) -> int | None:
    words = _WORDS.match(data, at)
    if words is None:
        return None
    at = words.end()
    for _ in range(int(words[1])):
        length = _LENGTH.match(data, at)
        if length is None:
            return None
        at = length.end() + int(length[1]) + len(b"\r\n")
    return at


class AppendOnlyFile:
    """Implements `HeartbeatTask`. For one thread."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._refused = 0  # calls, at the last look
        self._is_due = False  # a rewrite has not succeeded yet
        self._has_begun = False
        self._wait_s, self._not_before_s = FIRST_WAIT_S, 0.0  # monotonic
        self._is_off = False  # this user may not look, or not begin a rewrite

    def beat(self) -> None:
        self.look()

    def close(self) -> None: ...

    def look(self) -> bool:
        """Begin a rewrite if a write failed since the last successful one; return whether one began.

        Raises StoreUnavailable.
        """
        if self._is_off:
            return False
        try:
            about = self._client.info("persistence")
            if not about.get("aof_enabled"):
                return False
            errors = self._client.info("errorstats")
            return self._begin(about, int(errors.get(REFUSED, {}).get("count", 0)))
        except NoPermissionError as error:
            log.warning("this Redis user may not look after the append-only file: %s", error)
            self._is_off = True
        except ResponseError as error:  # a rewrite is under way, or the server is busy
            log.debug("Redis' append-only file cannot be rewritten now: %s", error)
        return False

    def _begin(self, about: dict[str, Any], refused: int) -> bool:
        is_writing = about.get("aof_last_write_status") == "ok"
        if not is_writing or refused > self._refused:
            self._is_due, self._has_begun = True, False
        self._refused = refused
        is_rewriting = about.get("aof_rewrite_in_progress") or about.get("aof_rewrite_scheduled")
        if not self._is_due or not is_writing or is_rewriting:
            return False
        if self._has_begun and about.get("aof_last_bgrewrite_status") == "ok":
            log.info("Redis has rewritten its append-only file")
            self._is_due, self._wait_s, self._not_before_s = False, FIRST_WAIT_S, 0.0
            return False
        now_s = time.monotonic()
        if now_s < self._not_before_s:
            return False
        self._client.bgrewriteaof()
        log.warning("Redis could not write to its disk: rewriting its append-only file")
        self._has_begun, self._not_before_s = True, now_s + self._wait_s
        self._wait_s = min(2.0 * self._wait_s, LONGEST_WAIT_S)
        return True
