"""Test how `paceline.generate` uses Celery: priorities, expiry, revoking, progress, events for monitors."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Signature, chain, chord
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from app.messages import FinishReason
from app.request import GenerateRequest
from tests.workers.cluster import Cluster, wait_for
from tests.workers.conftest import MAX_ACTIVE, Alone
from workers.deployment import Deployment
from workers.recovery import give_up

WAIT_S = 60.0
GENERATE = "paceline.generate"
SHORT: dict[str, Any] = {"prompt": "Hello", "raw": True, "max_tokens": 8}
LONG: dict[str, Any] = {"prompt": "Hello", "raw": True, "max_tokens": 4000, "temperature": 0.7}
ENDS = {"task-succeeded", "task-failed", "task-revoked"}

STRANGER = """
import sys
from celery import Celery, chord
app = Celery(broker=sys.argv[1], backend=sys.argv[1])
send = lambda **fields: app.send_task("paceline.generate", kwargs=fields)
sent = send(prompt="Hello", raw=True, max_tokens=400, temperature=0.7)
states = set()
while not sent.ready():
    states.add(sent.state)
    if sent.state == "PROGRESS" and sent.info["tokens"]:
        assert sent.info["tokens"] < sent.info["max_tokens"] == 400
        app.control.revoke(sent.id)
        break
try:
    sent.get(timeout=60)
except Exception as error:
    print(type(error).__name__)
try:
    send(prompt="x", max_tokens=0).get(timeout=60)
except Exception as error:
    print(type(error).__name__, error)
print(send(prompt="Hello", raw=True, max_tokens=5).get(timeout=60)["usage"]["completion_tokens"])
foreign = [name for name in ("app", "workers", "torch", "pydantic") if name in sys.modules]
print(foreign)
"""


@pytest.fixture
def full(cluster: Cluster, deployment: Deployment) -> Iterator[list[str]]:
    """Provide a deployment without room; cancel some of these ids to make some."""
    with ThreadPoolExecutor(8) as pool:
        posted = list(pool.map(lambda _: cluster.post({**LONG, "wait": False}), range(MAX_ACTIVE)))
    ids = [accepted["id"] for accepted in posted]
    yield ids
    _cancel(deployment, ids)


def test_a_process_with_nothing_but_celery_gets_the_whole_result(cluster: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-c", STRANGER, cluster.redis_url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    lines = done.stdout.splitlines()
    assert (lines[0], lines[2:]) == ("TaskRevokedError", ["5", "[]"]), done.stderr
    assert lines[1].startswith("ValueError max_tokens: ")


def test_progress_is_published_during_generation_and_never_later(client: Celery, deployment: Deployment) -> None:
    sent = client.send_task(GENERATE, kwargs=LONG)
    wait_for(lambda: sent.state == "PROGRESS" and sent.info["tokens"] > 0, WAIT_S, "its progress")
    first = sent.info
    wait_for(lambda: sent.info["tokens"] > first["tokens"], WAIT_S, "more of it")
    assert first["max_tokens"] == deployment.requests.snapshot(sent.id).record.max_tokens
    key = client.backend.get_key_for_task(sent.id).decode()
    give_up(deployment, sent.id, 5)
    assert not deployment.progress.tell(sent.id, key, "late", 10)
    with pytest.raises(Exception, match="5 verifiers died"):
        sent.get(timeout=WAIT_S)
    again = client.send_task(GENERATE, kwargs=LONG, task_id=sent.id)  # a failed one is not begun again
    client.send_task(GENERATE, kwargs=SHORT).get(timeout=WAIT_S)
    assert again.state == "FAILURE"


def test_revoked_request_stops_and_its_neighbour_does_not(client: Celery, deployment: Deployment, alone: Alone) -> None:
    fields = {**SHORT, "max_tokens": 20, "temperature": 0.9, "seed": 5}
    sent = client.send_task(GENERATE, kwargs=LONG)
    wait_for(lambda: _tokens(deployment, sent.id), WAIT_S, "its tokens")
    neighbour = client.send_task(GENERATE, kwargs=fields)
    started = time.monotonic()
    client.control.revoke(sent.id, terminate=True)
    with pytest.raises(TaskRevokedError):
        sent.get(timeout=WAIT_S)
    print(f"revoked within {time.monotonic() - started:.2f} s")
    assert sent.state == "REVOKED"
    snapshot = deployment.requests.snapshot(sent.id)
    assert snapshot.finish_reason is FinishReason.CANCELLED and snapshot.tokens
    assert neighbour.get(timeout=WAIT_S)["token_ids"] == alone(GenerateRequest.model_validate(fields))


def test_a_full_deployment_admits_by_priority_and_drops_ended_tasks(
    client: Celery, deployment: Deployment, full: list[str]
) -> None:
    def send(**options: Any) -> AsyncResult:
        sent = client.send_task(GENERATE, kwargs=SHORT, **options)
        wait_for(lambda: sent.state in ("WAITING", "REVOKED"), WAIT_S, "the task to wait")
        return sent

    expired = send(expires=2)
    low, normal, high = send(queue="celery.low"), send(), send(queue="celery.high")
    revoked = send()
    assert [deployment.waiting.before(name) for name in ("high", "normal", "low")] == [1, 4, 5]
    client.control.revoke(revoked.id)
    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=WAIT_S)
    wait_for(lambda: expired.state == "REVOKED", WAIT_S, "the expiry")
    _cancel(deployment, full)
    assert {sent.get(timeout=WAIT_S)["status"] for sent in (low, normal, high)} == {"done"}
    created = [deployment.requests.snapshot(sent.id).record.created_s for sent in (high, normal, low)]
    assert created == sorted(created)
    for gone in (expired, revoked):
        assert deployment.requests.task(gone.id) is None
    assert not len(deployment.waiting)


def test_generations_feed_generations_in_chains_and_chords(client: Celery) -> None:
    def sign(**fields: Any) -> Signature:
        return client.signature(GENERATE, kwargs={"raw": True, "max_tokens": 6, **fields})

    texts = [sign(prompt=prompt).apply_async().get(timeout=WAIT_S)["text"] for prompt in ("Hello", "Bye")]
    next_ = [sign(prompt=prompt).apply_async().get(timeout=WAIT_S) for prompt in (texts[0], "\n\n".join(texts))]
    chained = chain(sign(prompt="Hello"), sign()).apply_async()
    joined = chord([sign(prompt="Hello"), sign(prompt="Bye")])(sign())
    assert [one.get(timeout=WAIT_S)["token_ids"] for one in (chained, joined)] == [one["token_ids"] for one in next_]
    with pytest.raises(ValueError, match="each part of a chord"):
        client.send_task(GENERATE, args=[["Hello", 3]]).get(timeout=WAIT_S)


def test_monitors_hear_of_every_end_and_no_answer(client: Celery, deployment: Deployment, helpers: str) -> None:
    with heard(client) as events:
        ok, failing, revoked = (client.send_task(GENERATE, kwargs=fields) for fields in (SHORT, LONG, LONG))
        for sent in (failing, revoked):
            wait_for(lambda sent=sent: _tokens(deployment, sent.id), WAIT_S, "its tokens")
        give_up(deployment, failing.id, 5)
        client.control.revoke(revoked.id)
        header = [client.signature(GENERATE, kwargs=SHORT) for _ in range(2)]
        body = chord(header)(client.signature("helpers.texts_of", queue=helpers))
        text = body.get(timeout=WAIT_S)[0]
        wanted = {ok.id: "succeeded", failing.id: "failed", revoked.id: "revoked"}
        wanted |= {part.id: "succeeded" for part in body.parent.results}
        ends = wait_for(lambda: _ends(events) if wanted.keys() <= _ends(events).keys() else None, WAIT_S, "all ends")
    assert {id_: ends[id_]["type"].removeprefix("task-") for id_ in wanted} == wanted
    assert ends[ok.id]["result"] == "done, 8 tokens" and 0.0 < ends[ok.id]["runtime"] < WAIT_S
    assert "5 verifiers died" in ends[failing.id]["exception"] and not ends[revoked.id]["expired"]
    received = {event["uuid"]: event["name"] for event in events if event["type"] == "task-received"}
    assert {received[id_] for id_ in wanted} == {GENERATE} and "paceline.steer" not in received.values()
    assert {ends[id_]["hostname"].split("@")[0] for id_ in wanted} == {"control-1"}
    assert len(text) > 5 and text not in str(events)


@contextmanager
def heard(client: Celery) -> Iterator[list[dict[str, Any]]]:
    """Collect the events that a monitor receives during the block."""
    events: list[dict[str, Any]] = []
    with client.connection_for_read() as connection:
        receiver = client.events.Receiver(connection, handlers={"*": events.append})
        listening = threading.Event()
        receiver.on_consume_ready = lambda *_, **__: listening.set()
        thread = threading.Thread(target=receiver.capture)
        thread.start()
        try:
            assert listening.wait(10)
            yield events
        finally:
            receiver.should_stop = True
            thread.join(10)


def _ends(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {event["uuid"]: event for event in list(events) if event["type"] in ENDS}


def _tokens(deployment: Deployment, request_id: str) -> int:
    return deployment.progress.tokens([request_id]).get(request_id, 0)


def _cancel(deployment: Deployment, ids: list[str]) -> None:
    for request_id in ids:
        deployment.requests.end(request_id, FinishReason.CANCELLED)
