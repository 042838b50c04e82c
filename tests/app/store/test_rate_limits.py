"""The places of an API key are counted by the requests themselves, over a real Redis."""

import time

import pytest
import redis

from app.api_keys import ApiKey
from app.errors import InvalidRequest, OverLimit
from app.store import rate_limits
from app.store.rate_limits import RateLimits

KEY = ApiKey(name="me", sha256="0" * 64, tenant="me", concurrent=2)


@pytest.fixture
def bounds(redis_client: redis.Redis) -> RateLimits:
    return RateLimits(redis_client, "test", active_ttl_s=60.0)


def test_the_same_call_again_holds_the_same_places(bounds: RateLimits) -> None:
    bounds.take(KEY, ["a", "b"])
    bounds.take(KEY, ["a", "b"])  # as when the first reply was lost
    with pytest.raises(OverLimit, match="at most 2 texts at once"):
        bounds.take(KEY, ["c"])
    bounds.give_back(KEY, ["a"])
    bounds.take(KEY, ["c"])


def test_a_stored_request_that_is_not_active_has_given_its_place_back(
    bounds: RateLimits, redis_client: redis.Redis
) -> None:
    redis_client.zadd("test:active", {"a": 1e15})
    bounds.take(KEY, ["a", "b"])
    bounds.stored(KEY, ["a", "b"])
    bounds.take(KEY, ["c"])  # in b's place
    with pytest.raises(OverLimit):
        bounds.take(KEY, ["d"])


def test_places_reserved_by_a_web_process_that_died_come_back(
    bounds: RateLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "RESERVED_S", 0.05)
    bounds.take(KEY, ["a", "b"])
    with pytest.raises(OverLimit):
        bounds.take(KEY, ["c"])
    time.sleep(0.06)
    bounds.take(KEY, ["c", "d"])


def test_a_request_stored_late_holds_its_place_all_the_same(
    bounds: RateLimits, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "RESERVED_S", 0.0)
    bounds.take(KEY, ["a"])
    bounds.take(KEY, ["b"])  # which lets go of what ran out
    bounds.give_back(KEY, ["b"])
    redis_client.zadd("test:active", {"a": 1e15, "b": 1e15})
    bounds.stored(KEY, ["a"])
    assert redis_client.pttl("test:held:me") > 0
    bounds.take(KEY, ["b"])
    bounds.stored(KEY, ["b"])
    with pytest.raises(OverLimit):
        bounds.take(KEY, ["c"])


@pytest.mark.parametrize("limit", ["concurrent", "rate_per_minute"])
def test_a_call_that_can_never_fit_is_refused_without_a_wait(bounds: RateLimits, limit: str) -> None:
    key = KEY.model_copy(update={"concurrent": 5, "rate_per_minute": 5, limit: 2})
    with pytest.raises(InvalidRequest, match="at most 2 texts a call, not 3"):
        bounds.take(key, ["a", "b", "c"])
    bounds.take(key, ["a", "b"])


def test_a_call_over_the_rate_holds_no_place(bounds: RateLimits, redis_client: redis.Redis) -> None:
    key = KEY.model_copy(update={"rate_per_minute": 1})
    bounds.take(key, ["a"])
    with pytest.raises(OverLimit, match="a minute"):
        bounds.take(key, ["b"])
    assert redis_client.zrange("test:held:me", 0, -1) == ["a"]
    assert all(name.startswith("test:") for name in redis_client.scan_iter())
