"""Test that a dump of Redis is loaded whole, with its times moved by the time since."""

import time
from typing import Any

import pytest
import redis

from tests.workers.redis_dump import dump, load, moved

CREATED_S = 1.7e9
VALUES: dict[str, Any] = {
    "string": "1700000000",
    "hash": {"created_s": "1700000000.5", "text": "café"},
    "list": ["first", "second"],
    "set": ["one", "two"],
    "zset": [["small", 3.0], ["late", 1700000000000.0]],
    "stream": [["1-0", {"event": "{}"}], ["3-1", {"event": '{"offset":1}'}]],
}


def test_every_type_is_loaded_as_dumped(redis_client: redis.Redis) -> None:
    keys = [{"key": kind, "type": kind, "ttl_ms": -1, "value": value} for kind, value in sorted(VALUES.items())]
    load(redis_client, keys, time.time())
    assert dump(redis_client) == keys


def test_loaded_times_and_lifetimes_are_fresh(redis_client: redis.Redis) -> None:
    entry = {"key": "request", "type": "hash", "ttl_ms": 60_000, "value": VALUES["hash"]}
    index = {"key": "active", "type": "zset", "ttl_ms": -1, "value": VALUES["zset"]}
    load(redis_client, [entry, index], dumped_s=CREATED_S)
    created_s = float(str(redis_client.hget("request", "created_s")))
    assert CREATED_S + 1e7 < created_s < time.time() + 1.0
    assert redis_client.zscore("active", "late") == 1000 * (created_s - 0.5)
    assert 0 < redis_client.pttl("request") <= 60_000 and redis_client.ttl("active") == -1


@pytest.mark.parametrize(
    ("value", "later"),
    [
        ("1700000000.25", "1700000100.25"),
        ('{"created_s":1700000000,"n":12}', '{"created_s":1700000100,"n":12}'),
        ("1700000000999", "1700000100999"),
        ("2023-11-14T22:13:20.5+00:00", "2023-11-14T22:15:00.5+00:00"),
        ([["member", 1700000000000.0], ["other", 3.0]], [["member", 1700000100000.0], ["other", 3.0]]),
        ("-0.1700000000", "-0.1700000000"),
        ("a1700000000", "a1700000000"),
        ("1600000000", "1600000000"),
    ],
)
def test_times_near_the_dump_move_and_nothing_else(value: Any, later: Any) -> None:
    assert moved(value, dumped_s=1.7e9, passed_s=100) == later
