"""Test that the load of commits is the real store's, and that a wrong reply counts."""

import pytest
import redis

from bench.scale import store_load
from bench.scale.store_load import measure, parse_args

ARGS = parse_args(["--verifiers", "2", "--sequences", "3", "--steps", "4"])


def test_commits_written_beforehand_are_the_stores(redis_client: redis.Redis, redis_url: str) -> None:
    found = measure(redis_url, 1, ARGS)
    assert (found["commits"], found["wrong"]) == (24, 0)
    assert found["bytes in a commit"] > 200 and found["commits a second"] > 0


def test_a_commit_that_is_refused_counts(
    redis_client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_load, "TOKENS", 3)  # of an event, where it has two: the next one has a gap before it
    assert measure(redis_url, 0, ARGS)["wrong"] >= 2 * 3
