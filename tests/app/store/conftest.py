"""Fixtures of the store's tests: every test of a `bench` runs on both stores."""

import pytest

from tests.app.store.bench import Bench, make_record, memory_bench, redis_bench


@pytest.fixture(params=["memory", "redis"])
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param == "memory":
        return memory_bench()
    return redis_bench(request.getfixturevalue("redis_client"))


@pytest.fixture(params=["memory", "redis"])
def short_lived(request: pytest.FixtureRequest) -> Bench:
    """Ended requests live 0.15 s, active ones 0.3 s."""
    if request.param == "memory":
        return memory_bench(0.15, 0.3)
    return redis_bench(request.getfixturevalue("redis_client"), 0.15, 0.3)


@pytest.fixture
def running(bench: Bench) -> Bench:
    """Give a bench with request r1, owned by the living v1."""
    bench.revive("v1")
    assert bench.store.create(make_record(), limit=10)
    assert bench.store.assign("r1", "v1")
    return bench
