"""Dump a whole Redis as JSON, and load it into another one at a later time.

A time that is stored as a number (seconds or milliseconds of the wall clock) or as an ISO date is moved by as much
time as has passed since the dump, wherever it is: in fields of records, in scores, in messages of Celery. Times to live
begin anew. So a Redis that was loaded looks as if it had just been dumped.
"""

import gzip
import json
import re
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import redis

WINDOW_S = 2 * 86400  # a number further from the time of the dump is no time
NUMBER = re.compile(
    r"(?<![\w.])(\d{10}|\d{13})(?!\w)"
)  # whole seconds, perhaps with a fraction behind, or milliseconds
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def dump(client: redis.Redis) -> list[dict[str, Any]]:
    """Return all keys in order, each with its type, value and time to live in milliseconds (-1: none).

    `client` decodes responses. Nothing writes to Redis meanwhile.
    """
    keys = sorted(str(key) for key in client.scan_iter(count=1000))
    return [_entry(client, key) for key in keys]


def load(client: redis.Redis, keys: list[dict[str, Any]], dumped_s: float) -> None:
    """Write the keys of a dump that was made at `dumped_s` into an empty Redis."""
    passed_s = int(time.time() - dumped_s)
    for entry in keys:
        _write(client, entry["key"], entry["type"], moved(entry["value"], dumped_s, passed_s))
        if entry["ttl_ms"] >= 0:
            client.pexpire(entry["key"], max(1, entry["ttl_ms"]))


def moved(value: Any, dumped_s: float, passed_s: int) -> Any:
    """Return a value in which every time near `dumped_s` is `passed_s` later."""
    if isinstance(value, dict):
        return {name: moved(one, dumped_s, passed_s) for name, one in value.items()}
    if isinstance(value, list):
        return [moved(one, dumped_s, passed_s) for one in value]
    if isinstance(value, str):
        return DATE.sub(
            lambda found: _date(found[0], dumped_s, passed_s),
            NUMBER.sub(lambda found: str(int(found[0]) + _shift(int(found[0]), dumped_s, passed_s)), value),
        )
    return value + _shift(value, dumped_s, passed_s)


def read(file: Path) -> dict[str, Any]:
    """Read the JSON object of a compressed file."""
    return dict(json.loads(gzip.decompress(file.read_bytes())))


def write(file: Path, content: dict[str, Any]) -> None:
    """Compress a JSON object into a file; the same object gives the same bytes."""
    file.write_bytes(gzip.compress(json.dumps(content, indent=1).encode(), mtime=0))


def _shift(number: float, dumped_s: float, passed_s: int) -> int:
    for unit in (1, 1000):  # seconds, milliseconds
        if abs(number / unit - dumped_s) < WINDOW_S:
            return passed_s * unit
    return 0


def _date(text: str, dumped_s: float, passed_s: int) -> str:
    date = datetime.fromisoformat(f"{text}+00:00")  # another zone is hours off, and no further
    is_near = abs(date.timestamp() - dumped_s) < WINDOW_S
    return (date + timedelta(seconds=passed_s)).isoformat()[: len(text)] if is_near else text


def _entry(client: redis.Redis, key: str) -> dict[str, Any]:
    kind = str(client.type(key))
    return {"key": key, "type": kind, "ttl_ms": client.pttl(key), "value": _value(client, key, kind)}


def _value(client: redis.Redis, key: str, kind: str) -> Any:
    found: Any
    match kind:
        case "string":
            return client.get(key)
        case "hash":
            found = client.hgetall(key)
            return dict(sorted(found.items()))
        case "list":
            return client.lrange(key, 0, -1)
        case "set":
            found = client.smembers(key)
            return sorted(found)
        case "zset":
            found = client.zrange(key, 0, -1, withscores=True)
            return [[member, score] for member, score in found]
        case "stream":
            found = client.xrange(key)
            return [[place, fields] for place, fields in found]
    raise ValueError(f"{key} is a {kind}")


def _write(client: redis.Redis, key: str, kind: str, value: Any) -> None:
    match kind:
        case "string":
            client.set(key, value)
        case "hash":
            client.hset(key, mapping=value)
        case "list":
            client.rpush(key, *value)
        case "set":
            client.sadd(key, *value)
        case "zset":
            client.zadd(key, dict(value))
        case "stream":
            for place, fields in value:
                client.xadd(key, fields, place)
        case _:
            raise ValueError(f"{key} is a {kind}")
