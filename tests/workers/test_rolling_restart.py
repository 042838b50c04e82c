"""Test a rolling restart from the old version to this one under load: no request fails."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from app.request import GenerateRequest
from tests.workers.cluster import Stream, wait_for
from tests.workers.conftest import Alone
from tests.workers.versions import NAMESPACE, OLD, ROLES, ROOT, Workers, answers, free_port, has, unpack

TOKENS = 80
BEGUN = 10  # tokens that a request has when the process is stopped


class Clients:
    """Requests over HTTP and Celery, one stream among them, and their outcomes."""

    def __init__(self, redis_url: str, url: str) -> None:
        self.url = url  # of the web server that serves now
        self.fields: dict[str, dict[str, Any]] = {}  # of each request, by its id
        self.redis = redis.Redis.from_url(redis_url, decode_responses=True)
        self._celery = Celery("caller", broker=redis_url, set_as_current=False)

    def send(self, name: str) -> list[str]:
        """Begin a greedy request over HTTP and a sampled one as a Celery task; return their ids."""
        greedy = {"prompt": f"While {name} is replaced", "raw": True, "max_tokens": TOKENS}
        sampled = {**greedy, "temperature": 0.8, "seed": len(self.fields)}
        ids = [str(self._call("/api/generate", {**greedy, "wait": False})["id"]), f"task-{name}"]
        self._celery.send_task("paceline.generate", kwargs=sampled, task_id=ids[1], ignore_result=True)
        self.fields |= dict(zip(ids, (greedy, sampled), strict=True))
        wait_for(lambda: all(self.tokens(id_) >= BEGUN for id_ in ids), what=f"tokens while {name} is replaced")
        return ids

    def tokens(self, request_id: str) -> int:
        """Return the number of committed tokens."""
        return int(str(self.redis.hget(self._key(request_id), "length") or 0))

    def is_active(self, request_id: str) -> bool:
        """Return whether a request has not ended."""
        return self.redis.hget(self._key(request_id), "status") == "active"

    def result(self, request_id: str) -> dict[str, Any]:
        """Return the web server's answer about a request at its end."""
        wait_for(lambda: not self.is_active(request_id), what=f"the end of {request_id}")
        return self._call(f"/api/requests/{request_id}")

    def close(self) -> None:
        """Close the connections."""
        self._celery.close()
        self.redis.close()

    def _key(self, request_id: str) -> str:
        return f"{NAMESPACE}:request:{request_id}"

    def _call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(call, timeout=60) as response:
            return dict(json.load(response))


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the folder of the old version's code."""
    if not has(OLD):
        pytest.skip(f"the repository's history does not hold {OLD}: a source archive, or a shallow clone")
    return unpack(OLD, tmp_path_factory.mktemp("old"))


@pytest.fixture
def versions(
    old_code: Path, redis_client: redis.Redis, redis_url: str, modules_environ: dict[str, str], tmp_path: Path
) -> Iterator[tuple[Workers, Workers]]:
    """Run workers of the old version and of this one on one empty Redis."""
    with ExitStack() as stack:
        roots = {"old": old_code, "new": ROOT}
        logs = {name: tmp_path / name for name in roots}
        workers = [Workers(root, redis_url, logs[name], modules_environ) for name, root in roots.items()]
        for one in workers:
            stack.callback(one.close)
        yield workers[0], workers[1]


@pytest.mark.extended
def test_rolling_restart_from_the_old_version_loses_nothing(
    versions: tuple[Workers, Workers], redis_url: str, modules_alone: Alone
) -> None:
    old, new = versions
    urls = [f"http://127.0.0.1:{free_port()}" for _ in versions]
    for role in ROLES:
        old.start(role, _node(role, "old"), _port(urls[0]))
    wait_for(lambda: all(old.is_alive(role) for role in ROLES) and answers(urls[0]), what="the old version")
    interrupted = []
    with closing(Clients(redis_url, urls[0])) as clients:
        for role in ROLES:
            new.start(role, _node(role, "new"), _port(urls[1]))
            # The beat has one name: as in compose.yaml, its second process waits for the first to end.
            wait_for(lambda role=role: new.is_alive(role), what=f"{role} of this version")
            ids = clients.send(role)
            if role == "web":
                wait_for(lambda: answers(urls[1]), what="this version's web server")
                stream = Stream.at(urls[0], ids[0], 0).read(until=BEGUN)
                clients.url = urls[1]
            interrupted += [id_ for id_ in ids if clients.is_active(id_)]
            assert old.stop(role) == 0
        stream.close()
        rest = Stream.at(urls[1], ids[0], len(stream.tokens)).read()
        results = {id_: clients.result(id_) for id_ in clients.fields}
        assert not clients.redis.zcard(f"{NAMESPACE}:active")
    assert len(interrupted) > len(ROLES) // 2  # a fast machine ends some before
    assert {result["status"] for result in results.values()} == {"done"}
    assert stream.tokens + rest.tokens == results[ids[0]]["token_ids"]
    for id_, fields in clients.fields.items():
        assert results[id_]["token_ids"] == modules_alone(GenerateRequest.model_validate(fields)), id_


def _node(role: str, version: str) -> str:
    return "beat-1" if role == "beat" else f"{role}-{version}"


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
