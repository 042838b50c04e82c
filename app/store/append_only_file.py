"""Have Redis write its append-only file anew once a write to its disk has failed.

A server cuts the part that it had written off the file again, and goes on when there is room. After a rewrite of the
file it cuts at the wrong place (seen of Valkey 9.1: `tests/app/store/test_append_only_file.py`): what it holds in
memory is whole, but its file is not, and its next start fails. A rewrite makes the file from memory.
"""

import logging
from contextlib import suppress
from typing import Any

import redis
from redis.exceptions import ResponseError

log = logging.getLogger(__name__)
REFUSED = "errorstat_MISCONF"  # calls that the server refused because it could not write to its disk


class AppendOnlyFile:
    """Looks for failed writes, and has the file written anew after one. Implements `HeartbeatTask`. For one thread."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._refused = 0  # calls, at the last look
        self._is_due = False  # is a rewrite that succeeds still to come?
        self._has_begun = False
        self._is_off = False  # this server does not let us look, or has no such file

    def beat(self) -> None:
        """Look, and begin a rewrite if one is due. Raises StoreUnavailable."""
        self.look()

    def close(self) -> None:
        """Leave the rest to the next process."""

    def look(self) -> bool:
        """Begin a rewrite if a write failed since the last one that succeeded; return whether one began.

        Raises StoreUnavailable.
        """
        if self._is_off:
            return False
        try:
            about, errors = self._client.info("persistence"), self._client.info("errorstats")
            self._is_off = not about.get("aof_enabled")
            return not self._is_off and self._begin(about, int(errors.get(REFUSED, {}).get("count", 0)))
        except ResponseError as error:  # a server of another kind, or a user without this right
            log.warning("Redis' append-only file is not looked after: %s", error)
            self._is_off = True
            return False

    def _begin(self, about: dict[str, Any], refused: int) -> bool:
        is_writing = about.get("aof_last_write_status") == "ok"
        if not is_writing or (refused != self._refused and about.get("rdb_last_bgsave_status") == "ok"):
            self._is_due, self._has_begun = True, False
        self._refused = refused
        is_rewriting = about.get("aof_rewrite_in_progress") or about.get("aof_rewrite_scheduled")
        if not self._is_due or not is_writing or is_rewriting:
            return False
        if self._has_begun and about.get("aof_last_bgrewrite_status") == "ok":
            log.info("Redis has written its append-only file anew")
            self._is_due = False
            return False
        log.warning("Redis could not write to its disk for a while: it writes its append-only file anew")
        with suppress(ResponseError):  # another process was first
            self._client.bgrewriteaof()
        self._has_begun = True
        return True
