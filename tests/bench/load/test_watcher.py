"""Test the samples of a long run, and the growth found in them."""

import os
from contextlib import ExitStack

import redis

from app.local.instance import ProcessId, State
from bench.load.watcher import growth, look


def test_growth_tells_a_leak_from_a_cache_that_fills() -> None:
    filled = [min(500.0, 100.0 + 20.0 * i) + i % 3 for i in range(80)]
    leaking = [500.0 + 2.0 * i for i in range(80)]
    found = growth("memory", {"filled": filled, "leaking": leaking})
    assert not found["filled"]["grew"] and found["leaking"]["grew"]
    assert found["filled"]["highest"] == 502.0


def test_processes_and_redis_are_sampled(redis_url: str, redis_client: redis.Redis) -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None
    gone = ProcessId(pid=2**22 + 1, started="never")
    state = State(
        instance="x",
        supervisor=me,
        url="",
        redis_url=redis_url,
        namespace="n",
        processes={"web": (me, me), "old": (gone,)},
    )
    redis_client.set("a", "b")
    before = look(state, redis_client)
    with ExitStack() as held:
        for _ in range(20):
            held.enter_context(open(os.devnull))
        after = look(state, redis_client)
    assert before["memory"]["web"] > 20.0 and before["memory"]["old"] == 0.0
    assert after["files"]["web"] == before["files"]["web"] + 20 and "web-1" in after["files"]
    assert (before["keys"]["all"], before["connections"]["clients"] >= 1) == (1.0, True)
