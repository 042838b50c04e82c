"""Test that this version goes on with the Redis of an old one killed at work (see make_dump.py).

The dump is loaded into an empty Redis, and a deployment of this version is started on it. The tokens that are expected
are generated here, by the target alone: whatever a machine's arithmetic does to them, it does to both.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
import tokenizers
from celery import Celery
from celery.result import AsyncResult

from app.request import GenerateRequest
from tests.workers.cluster import Cluster, Stream, running, wait_for
from tests.workers.conftest import Alone, stranger
from tests.workers.make_dump import CALLBACKS_QUEUE, COLOURS, FIXTURE
from tests.workers.redis_dump import load, read
from tests.workers.versions import ROOT

WAIT_S = 120.0
OLD = read(FIXTURE)
REQUESTS: dict[str, dict[str, Any]] = {request["name"]: request for request in OLD["requests"]}
ACTIVE = [name for name, request in REQUESTS.items() if request["state"] == "active"]
ENDED = [name for name, request in REQUESTS.items() if request["shown"] is not None]
TASKS = [name for name, request in REQUESTS.items() if request["is_task"]]
NAMESPACE = str(OLD["namespace"])
pytestmark = pytest.mark.extended


@dataclass(frozen=True, slots=True)
class Takeover:
    """A deployment of this version on the Redis of the old one, and a client of its tasks."""

    cluster: Cluster
    redis: redis.Redis
    celery: Celery
    tokenizer: tokenizers.Tokenizer

    def result(self, name: str) -> dict[str, Any]:
        """Return the web server's answer about a request once it has ended."""
        path = f"/api/requests/{REQUESTS[name]['id']}"
        wait_for(lambda: self._exists(name) and self.cluster.get(path)["status"] != "active", what=name)
        return self.cluster.get(path)

    def task_result(self, task_id: str) -> Any:
        """Return the result of a Celery task once there is one."""
        return AsyncResult(task_id, app=self.celery).get(timeout=WAIT_S)

    def text(self, token_ids: list[int], stop: list[str]) -> str:
        """Return the text of tokens, up to the first of the stop strings."""
        text = str(self.tokenizer.decode(token_ids))
        return text[: min((text.find(end) for end in stop if end in text), default=len(text))]

    def _exists(self, name: str) -> bool:
        return bool(self.redis.exists(f"{NAMESPACE}:request:{REQUESTS[name]['id']}"))


@pytest.fixture(scope="module")
def takeover(
    redis_url: str, modules_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Takeover]:
    """Share one takeover among this module's tests, each of which checks a part of what was in Redis."""
    client = redis.Redis.from_url(redis_url, decode_responses=True)
    client.flushall()
    load(client, OLD["keys"], OLD["dumped_s"])
    environ = {**modules_environ, "PACELINE_REDIS_URL": redis_url, "PACELINE_NAMESPACE": NAMESPACE}
    state = tmp_path_factory.mktemp("state")
    tokenizer = tokenizers.Tokenizer.from_file(f"{modules_environ['PACELINE_MODEL']}/tokenizer.json")
    with (
        _callbacks(redis_url, state / "callbacks.log"),
        running(f"dump-{os.getpid()}", state, environ) as cluster,
        stranger(cluster) as celery,
    ):
        yield Takeover(cluster, client, celery, tokenizer)
    client.flushall()
    client.close()


@pytest.mark.parametrize("name", [*ACTIVE, "waiting", "unread", "unsettled"])
def test_request_ends_with_the_tokens_of_the_target_alone(takeover: Takeover, modules_alone: Alone, name: str) -> None:
    request = REQUESTS[name]
    result = takeover.result(name)
    assert result["status"] == "done"
    assert result["token_ids"] == modules_alone(GenerateRequest.model_validate(request["fields"]))
    assert result["text"] == takeover.text(result["token_ids"], request["fields"].get("stop", []))
    assert result["finish_reason"] == request["expected"]["finish_reason"]


@pytest.mark.parametrize("name", ACTIVE)
def test_committed_tokens_are_kept(takeover: Takeover, name: str) -> None:
    committed = REQUESTS[name]["committed"]
    stream = Stream.at(takeover.cluster.url, REQUESTS[name]["id"], len(committed)).read()
    token_ids = takeover.result(name)["token_ids"]
    assert 0 < len(committed) < len(token_ids)
    assert token_ids == committed + stream.tokens


def test_log_probabilities_of_committed_tokens_are_kept(takeover: Takeover) -> None:
    key = f"{NAMESPACE}:events:{REQUESTS['logprobs']['id']}"
    (entries,) = [entry["value"] for entry in OLD["keys"] if entry["key"] == key]
    before = [one for _, fields in entries for one in json.loads(fields["event"])["logprobs"]]
    after = takeover.result("logprobs")["logprobs"]
    assert after[: len(before)] == before
    assert [len(one["top"]) for one in after] == [3] * len(takeover.result("logprobs")["token_ids"])


def test_answer_begun_before_follows_its_schema(takeover: Takeover) -> None:
    colours = json.loads(takeover.result("json")["text"])
    assert len(colours) == COLOURS["maxItems"] and set(colours) <= set(COLOURS["items"]["enum"])


@pytest.mark.parametrize("name", ENDED)
def test_ended_request_reads_as_before(takeover: Takeover, name: str) -> None:
    shown, now = REQUESTS[name]["shown"], takeover.result(name)
    assert now.pop("timing") == pytest.approx(shown["timing"], abs=1e-5)
    assert now == {field: value for field, value in shown.items() if field != "timing"}
    assert now["status"] == REQUESTS[name]["state"]
    stream = Stream.at(takeover.cluster.url, REQUESTS[name]["id"], 3).read()
    assert stream.tokens == shown["token_ids"][3:]


@pytest.mark.parametrize("name", TASKS)
def test_task_gets_the_result_of_its_request(takeover: Takeover, name: str) -> None:
    assert takeover.task_result(REQUESTS[name]["id"]) == takeover.result(name)


@pytest.mark.parametrize("kind", ["link", "chord"])
def test_callback_runs_with_the_texts(takeover: Takeover, kind: str) -> None:
    callback = OLD["callbacks"][kind]
    texts = [takeover.result(name)["text"] for name in callback["of"]]
    assert takeover.task_result(callback["id"]) == (texts if kind == "chord" else texts[0])


def test_nothing_stays_active_or_waits(takeover: Takeover) -> None:
    for name in REQUESTS:
        takeover.result(name)
    for name in TASKS:
        takeover.task_result(REQUESTS[name]["id"])
    wait_for(lambda: not _unfinished(takeover.redis), limit_s=WAIT_S, what="empty indexes")


def test_no_process_logs_an_error(takeover: Takeover) -> None:
    for name in REQUESTS:
        takeover.result(name)
    lines = [line for line in takeover.cluster.logs().splitlines() if line.startswith("{")]
    levels = {json.loads(line)["level"] for line in lines}
    assert "INFO" in levels and not levels & {"ERROR", "CRITICAL"}


def _unfinished(client: redis.Redis) -> dict[str, Any]:
    """Return what is still in an index of requests under way, by key."""
    sets = [f"{NAMESPACE}:active", f"{NAMESPACE}:unsettled", *client.scan_iter(f"{NAMESPACE}:owned:*")]
    found: dict[str, Any] = {key: client.zrange(key, 0, -1) for key in sets}
    for key in (f"{NAMESPACE}:waiting", "celery"):
        found[key] = client.lrange(key, 0, -1)
    return {key: members for key, members in found.items() if members}


@contextmanager
def _callbacks(redis_url: str, log: Path) -> Iterator[None]:
    """Run another service's worker for callbacks."""
    command = [sys.executable, "-m", "celery", "-A", "tests.workers.helper_tasks", "worker", "-P", "solo"]
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [*command, "-Q", CALLBACKS_QUEUE, "-n", "callbacks@%h"],
            env={**os.environ, "HELPERS_REDIS_URL": redis_url},
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        worker.terminate()
        worker.wait(30)
