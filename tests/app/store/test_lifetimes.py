"""Everything written for a request, a process or a key dies by itself, and no index outgrows it."""

import time

import pytest
import redis

from app.api_keys import ApiKey
from app.messages import FinishReason
from app.store import rate_limits
from app.store.nodes import Nodes
from app.store.rate_limits import RateLimits
from tests.app.store.bench import NAMESPACE, Bench, make_record, redis_bench, tokens_event

TTL_S, ACTIVE_TTL_S = 10.0, 60.0
LEASE_S = 0.1


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_all_of_an_ended_request_dies_after_its_time(redis_client: redis.Redis, is_cancelled: bool) -> None:
    bench = redis_bench(redis_client, TTL_S, ACTIVE_TTL_S)
    bench.revive("v1")
    bench.store.create(make_record(), limit=1)
    bench.store.assign("r1", "v1")
    bench.store.commit("v1", [("r1", tokens_event(0, 5))])
    keys = {f"{NAMESPACE}:{name}:r1" for name in ("request", "events")}
    assert all(redis_client.pttl(key) > TTL_S * 1000 for key in keys), "it runs for longer than it is kept"
    if is_cancelled:
        bench.store.end("r1", FinishReason.CANCELLED)
    else:
        bench.store.commit("v1", [("r1", tokens_event(1, 6, finish=FinishReason.LENGTH))])
    bench.bury("v1")
    assert set(redis_client.keys("*")) == keys | {f"{NAMESPACE}:ended:r1"}
    assert all(0 < redis_client.pttl(key) <= TTL_S * 1000 for key in redis_client.keys("*"))


@pytest.fixture
def expired(redis_client: redis.Redis) -> Bench:
    """Give a bench with an expired request of a task that was never ended."""
    bench = redis_bench(redis_client, LEASE_S, LEASE_S)
    assert bench.store.create(make_record(), limit=1, task="{}")
    time.sleep(1.5 * LEASE_S)
    return bench


def test_a_request_never_ended_takes_no_place_once_it_expired(expired: Bench, redis_client: redis.Redis) -> None:
    """No verifier lives that would remove the request."""
    assert expired.store.create(make_record("r2"), limit=1, task="{}")
    for index in ("active", "unsettled"):
        assert redis_client.zrange(f"{NAMESPACE}:{index}", 0, -1) == ["r2"]


def test_a_search_for_orphans_removes_expired_requests(expired: Bench, redis_client: redis.Redis) -> None:
    assert expired.store.orphans() == []
    assert not redis_client.exists(f"{NAMESPACE}:active")


def test_the_register_removes_processes_that_never_come_back(redis_client: redis.Redis) -> None:
    nodes = Nodes(redis_client, NAMESPACE, lease_s=LEASE_S)
    assert nodes.beat("draft", "gone", "o1", progress_s=0.0, info={})
    time.sleep(1.5 * LEASE_S)
    assert nodes.beat("draft", "here", "o2", progress_s=0.0, info={})
    assert redis_client.zrange(f"{NAMESPACE}:nodes", 0, -1) == ["draft:here"]


def test_places_never_stored_leave_no_trace(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The web process died each time before it stored the request or released its place."""
    monkeypatch.setattr(rate_limits, "RESERVED_S", 0.02)
    bounds = RateLimits(redis_client, NAMESPACE, active_ttl_s=ACTIVE_TTL_S)
    key = ApiKey(name="me", sha256="0" * 64, tenant="me", concurrent=2)
    for name in ("a", "b", "c"):
        bounds.take(key, [name])
        time.sleep(0.03)
    assert redis_client.zrange(f"{NAMESPACE}:held:me", 0, -1) == ["c"]
    assert 0 < redis_client.pttl(f"{NAMESPACE}:held:me") <= ACTIVE_TTL_S * 1000
