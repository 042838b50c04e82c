"""Provide deployments that the tests of this folder share; each test leaves them ready and idle."""

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from celery import Celery
from kombu import pools

from app.assembly.local import build_local
from app.config import ROOT, Settings
from app.engine.text.tokenizer import Tokenizer
from app.request import GenerateRequest
from app.speculation.drafter_pool import DrafterPool
from tests.models import byte_fallback_tokenizer, model_dir
from tests.workers.cluster import Cluster, running, wait_for
from tests.workers.tiny import make_model
from workers.celery_app import make_celery
from workers.deployment import Deployment

MAX_ACTIVE = 40
HELPERS_QUEUE = "helpers"
Alone = Callable[[GenerateRequest], list[int]]


@pytest.fixture(scope="session")
def tiny_environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return settings for a tiny target whose drafter has its weights, and so guesses well."""
    return _environ(tmp_path_factory.mktemp("models"), fused=True)


@pytest.fixture(scope="session")
def modules_environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the same for a target that runs on its own modules: the one that the old version's requests name."""
    return _environ(tmp_path_factory.mktemp("models"), fused=False)


def _environ(folder: Path, *, fused: bool) -> dict[str, str]:
    make_model(folder / "target", idle_layers=16, fused=fused)
    make_model(folder / "twin", fused=fused)
    return {
        "PACELINE_MODEL": str(folder / "target"),
        "PACELINE_DRAFTERS": str(folder / "twin"),
        "PACELINE_KV_BYTES": str(64 * 2**20),
        "PACELINE_VERIFY_THREADS": "1",
        "PACELINE_MAX_ACTIVE_REQUESTS": str(MAX_ACTIVE),
        "PACELINE_STEER_LOG": str(folder / "steer.jsonl"),
        "PACELINE_LOG_FORMAT": "json",
    }


@pytest.fixture(scope="session")
def shared(tiny_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(f"tiny-{os.getpid()}", tmp_path_factory.mktemp("state"), tiny_environ) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """Provide the tiny target's deployment, ready before and after the test."""
    shared.await_ready()
    yield shared
    shared.await_ready()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Provide a deployment of the default target with the packaged drafter."""
    environ = {"PACELINE_MODEL": str(model_dir())}
    with running(f"real-{os.getpid()}", tmp_path_factory.mktemp("state"), environ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def alone(tiny_environ: dict[str, str]) -> Alone:
    """Generate the tiny target's tokens for one request alone, without drafts, in this process."""
    return _alone(tiny_environ)


@pytest.fixture(scope="session")
def modules_alone(modules_environ: dict[str, str]) -> Alone:
    """Generate those of the target that runs on its own modules."""
    return _alone(modules_environ)


def _alone(environ: dict[str, str]) -> Alone:
    settings = Settings.from_env(environ)
    pipeline = build_local(settings.model_copy(update={"drafters": ()}))
    pipeline.verifier.follow(DrafterPool(), pipeline.verifier.policy)
    known: dict[str, list[int]] = {}

    def tokens(request: GenerateRequest) -> list[int]:
        key = request.model_dump_json()
        if key not in known:
            record = pipeline.submit(request, settings)
            known[key] = [token for event in pipeline.events(record) for token in event.tokens]
        return known[key]

    return tokens


@pytest.fixture
def deployment(cluster: Cluster) -> Iterator[Deployment]:
    """Open the shared deployment's store and mailboxes."""
    deployment = cluster.deployment()
    yield deployment
    deployment.close()
    pools.reset()


@pytest.fixture
def lone_deployment(
    redis_client: redis.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Deployment]:
    """Open a deployment over an empty Redis, without any other process."""
    monkeypatch.setattr("workers.mailbox_consumer.LINGER_S", 0.05)
    settings = Settings(redis_url=redis_url, lease_s=0.4)
    deployment = Deployment(settings, make_celery(settings), Tokenizer(byte_fallback_tokenizer(tmp_path)))
    yield deployment
    deployment.close()
    pools.reset()


def with_settings(deployment: Deployment, **changes: object) -> Deployment:
    """Open the same deployment under other settings."""
    changed = deployment.settings.model_copy(update=changes)
    return Deployment(changed, make_celery(changed), deployment.tokenizer)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Celery]:
    """Provide another service's Celery application, which knows the Redis and nothing else."""
    with stranger(cluster) as app:
        yield app


@contextmanager
def stranger(cluster: Cluster) -> Iterator[Celery]:
    """Make a Celery application with default settings; close all its connections after the block."""
    app = Celery("stranger", broker=cluster.redis_url, backend=cluster.redis_url, set_as_current=False)
    yield app
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Celery leaves a socket to the collector now and then
        gc.collect()  # results unsubscribe when they are collected: while there is a Redis to hear of it
    app.backend.result_consumer.stop()
    app.backend.client.close()
    app.close()
    pools.reset()


@pytest.fixture(scope="session")
def helpers(shared: Cluster) -> Iterator[str]:
    """Run that service's worker with small tasks, on its own queue; give the queue's name."""
    command = [sys.executable, "-m", "celery", "-A", "tests.workers.helper_tasks", "worker", "-P", "solo"]
    log_file = shared.state / "helpers.log"
    with log_file.open("wb") as log:
        worker = subprocess.Popen(
            [*command, "-Q", HELPERS_QUEUE, "-n", "helpers@%h", "-l", "INFO"],
            env={**os.environ, "HELPERS_REDIS_URL": shared.redis_url},
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    wait_for(lambda: " ready." in log_file.read_text(), what="the helpers' worker")
    yield HELPERS_QUEUE
    worker.terminate()
    worker.wait(30)
