"""Test `paceline.generate` from another service: plain Celery with default settings, without Paceline's code."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Signature, chain, chord, group
from celery.exceptions import TimeoutError as CeleryTimeout
from celery.result import AsyncResult

from app.config import ROOT
from app.messages import FinishReason, Result
from app.request import GenerateRequest
from tests.workers.cluster import Cluster, wait_for
from tests.workers.conftest import MAX_ACTIVE, Alone, stranger
from workers.deployment import Deployment

WAIT_S = 60.0
SHORT: dict[str, Any] = {"prompt": "Hello", "raw": True, "max_tokens": 12}
LONG: dict[str, Any] = {"prompt": "Hello", "raw": True, "max_tokens": 4000, "temperature": 0.7}
GENERATE = "paceline.generate"


@pytest.fixture
def generate(client: Celery) -> Iterator[Any]:
    """Make a signature of the task with these fields."""

    def sign(**fields: Any) -> Signature:
        return client.signature(GENERATE, kwargs=fields)

    yield sign


def _answer(result: AsyncResult) -> Result:
    return Result.model_validate(result.get(timeout=WAIT_S))


def test_result_of_a_sent_task_is_the_one_object_of_every_door(cluster: Cluster, client: Celery, alone: Alone) -> None:
    fields = {**SHORT, "temperature": 0.9, "seed": 7}
    sent = client.send_task(GENERATE, kwargs=fields)
    answer = _answer(sent)
    assert list(answer.token_ids) == alone(GenerateRequest.model_validate(fields))
    assert (answer.id, answer.status, answer.usage.completion_tokens) == (sent.id, "done", 12)
    shown = cluster.get(f"/api/requests/{sent.id}")
    assert shown == answer.model_dump(mode="json")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "temperature": "hot"}, "temperature"),
        ({"prompt": "x", "colour": "red"}, "colour"),
        ({"prompt": "x", "speculation": {"drafters": 3}}, "speculation"),
        ({"prompt": ""}, "prompt"),  # found at admission, not by the shape of the fields
        ({"prompt": "x", "raw": True, "max_tokens": 10**6}, "max_tokens"),
        ({"prompt": "x", "allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"max_tokens": 3}, "prompt"),
    ],
)
def test_bad_input_raises_at_the_caller_and_names_the_field(client: Celery, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        client.send_task(GENERATE, kwargs=fields).get(timeout=WAIT_S)


def test_several_links_are_all_called(client: Celery, helpers: str) -> None:
    ids = [str(uuid.uuid4()) for _ in range(2)]
    callbacks = [client.signature("helpers.text_of", queue=helpers, task_id=id_) for id_ in ids]
    answer = _answer(client.send_task(GENERATE, kwargs=SHORT, link=callbacks))
    assert [AsyncResult(id_, app=client).get(timeout=WAIT_S) for id_ in ids] == [answer.text] * 2


def test_chain_passes_a_prompt_in_and_the_result_on(client: Celery, helpers: str, generate: Any, alone: Alone) -> None:
    line = chain(
        client.signature("helpers.double", args=["ab"], queue=helpers),
        generate(raw=True, max_tokens=10),
        client.signature("helpers.text_of", queue=helpers),
        client.signature("helpers.double", queue=helpers),
    )
    text = client.send_task(GENERATE, kwargs={"prompt": "abab", "raw": True, "max_tokens": 10}).get(WAIT_S)["text"]
    assert line.apply_async().get(timeout=WAIT_S) == text + text


def test_group_gives_every_result(client: Celery, generate: Any, alone: Alone) -> None:
    requests = [{**SHORT, "temperature": 1.0, "seed": seed} for seed in range(4)]
    answers = group([generate(**fields) for fields in requests]).apply_async().get(timeout=WAIT_S)
    expected = [alone(GenerateRequest.model_validate(fields)) for fields in requests]
    assert [answer["token_ids"] for answer in answers] == expected


def test_a_chord_body_gets_the_texts_of_its_header(client: Celery, helpers: str, generate: Any) -> None:
    header = [generate(**{**SHORT, "prompt": prompt}) for prompt in ("Hello", "Bye", "Again")]
    texts = chord(header)(client.signature("helpers.texts_of", queue=helpers)).get(timeout=WAIT_S)
    alone_texts = [signature.apply_async().get(timeout=WAIT_S)["text"] for signature in header]
    assert texts == alone_texts


def test_failed_member_fails_the_chord(client: Celery, helpers: str, generate: Any) -> None:
    body = chord([generate(**SHORT), generate(prompt="x", max_tokens=0)])(
        client.signature("helpers.texts_of", queue=helpers)
    )
    with pytest.raises(Exception, match="max_tokens"):
        body.get(timeout=WAIT_S)


def test_a_failed_request_fails_its_task_and_chain_with_error_callback(
    client: Celery, deployment: Deployment, helpers: str, generate: Any
) -> None:
    mourned = str(uuid.uuid4())
    mourn = client.signature("helpers.mourn", queue=helpers, task_id=mourned)
    line = chain(generate(**LONG).set(link_error=mourn), client.signature("helpers.text_of", queue=helpers))
    last = line.apply_async()
    request_id = last.parent.id
    wait_for(lambda: _is_known(deployment, request_id), what="its admission")
    deployment.requests.end(request_id, FinishReason.ERROR, "struck by lightning")
    with pytest.raises(Exception, match="struck by lightning"):
        last.parent.get(timeout=WAIT_S)
    assert AsyncResult(mourned, app=client).get(timeout=WAIT_S) == f"mourned {request_id}"
    with pytest.raises(Exception, match="struck by lightning"):
        last.get(timeout=WAIT_S)


def test_bad_input_calls_the_error_callback(client: Celery, helpers: str) -> None:
    mourned = str(uuid.uuid4())
    mourn = client.signature("helpers.mourn", queue=helpers, task_id=mourned)
    sent = client.send_task(GENERATE, kwargs={"prompt": ""}, link_error=mourn)
    assert AsyncResult(mourned, app=client).get(timeout=WAIT_S) == f"mourned {sent.id}"


def test_same_task_id_twice_is_one_generation_and_one_callback(
    client: Celery, deployment: Deployment, helpers: str
) -> None:
    task_id, key = str(uuid.uuid4()), f"count:{uuid.uuid4()}"
    link = client.signature("helpers.count", args=[key], queue=helpers)
    fields = {**SHORT, "temperature": 1.0}  # no seed: a second generation would say something else
    active = deployment.requests.active()
    first = client.send_task(GENERATE, kwargs=fields, task_id=task_id, link=link)
    second = client.send_task(GENERATE, kwargs=fields, task_id=task_id, link=link)
    assert deployment.requests.active() <= active + 1
    assert _answer(first) == _answer(second)
    again = client.send_task(GENERATE, kwargs=fields, task_id=task_id, link=link)
    assert _answer(again) == _answer(first)
    _answer(client.send_task(GENERATE, kwargs=SHORT))  # whatever was to be sent has been sent by now
    wait_for(lambda: client.backend.client.get(key) is not None, what="the callback")
    assert client.backend.client.get(key) == b"1"


def test_the_task_of_a_cancelled_request_gets_the_tokens_so_far(
    cluster: Cluster, client: Celery, deployment: Deployment
) -> None:
    sent = client.send_task(GENERATE, kwargs=LONG)
    wait_for(lambda: _is_known(deployment, sent.id) and deployment.requests.snapshot(sent.id).tokens, what="its tokens")
    cancelled = cluster.get(f"/api/requests/{sent.id}", method="DELETE")
    answer = _answer(sent)
    assert answer.status == "cancelled" and answer.finish_reason == "cancelled"
    assert list(answer.token_ids) == cancelled["token_ids"]


def test_pickled_message_is_refused_and_never_opened(cluster: Cluster, client: Celery, tmp_path: Path) -> None:
    worker = cluster.pid("control")
    trap = tmp_path / "opened"
    with stranger(cluster) as pickler:
        pickler.conf.update(task_serializer="pickle", accept_content=["pickle", "json"])
        sent = pickler.send_task(GENERATE, kwargs={**SHORT, "prompt": _Trap(trap)})
        with pytest.raises(CeleryTimeout):
            sent.get(timeout=1.0)
        del sent
    assert _answer(client.send_task(GENERATE, kwargs=SHORT)).status == "done"
    assert not trap.exists() and cluster.pid("control") == worker


class _Trap:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.mkdir, (self._path,)


def test_no_slot_is_blocked_while_requests_generate(client: Celery, deployment: Deployment) -> None:
    sent = [client.send_task(GENERATE, kwargs=LONG) for _ in range(32)]
    try:
        wait_for(lambda: deployment.requests.active() == 32, what="all to be admitted")
        started = time.monotonic()
        for _ in range(8):
            with pytest.raises(ValueError, match="max_tokens"):
                client.send_task(GENERATE, kwargs={"prompt": "x", "max_tokens": 0}).get(timeout=WAIT_S)
        took_s = (time.monotonic() - started) / 8
        running = client.control.inspect(timeout=5.0).active() or {}
        names = [task["name"] for tasks in running.values() for task in tasks]
        assert GENERATE not in names
        assert deployment.requests.active() == 32
        assert took_s < WAIT_S / 6, "far from waiting for one of the requests"
        print(f"with 32 requests running, a light task takes {1e3 * took_s:.0f} ms")
    finally:
        _cancel(deployment, [result.id for result in sent])
    assert {_answer(result).status for result in sent} == {"cancelled"}


def test_a_full_deployment_refuses_web_callers_and_queues_tasks(
    cluster: Cluster, client: Celery, deployment: Deployment
) -> None:
    posted = _fill(cluster)
    try:
        refusal = _refused(cluster)
        assert refusal == (429, "1")
        late = client.send_task(GENERATE, kwargs=SHORT)
        wait_for(lambda: late.state == "WAITING", what="the task to be put off")
        assert not _is_known(deployment, late.id)
    finally:
        _cancel(deployment, [accepted["id"] for accepted in posted])
    assert _answer(late).status == "done"


@pytest.mark.slow
def test_tasks_that_wait_for_room_survive_a_killed_control(
    cluster: Cluster, client: Celery, deployment: Deployment
) -> None:
    posted = _fill(cluster)
    try:
        late = [client.send_task(GENERATE, kwargs=SHORT) for _ in range(6)]
        wait_for(lambda: all(result.state == "WAITING" for result in late), what="the tasks to be put off")
        cluster.signal("control", signal.SIGKILL)
    finally:
        _cancel(deployment, [accepted["id"] for accepted in posted])
    started = time.monotonic()
    assert {_answer(result).status for result in late} == {"done"}
    print(f"tasks a killed control held: done {time.monotonic() - started:.1f} s later")


def test_instances_with_queues_of_their_own_share_a_redis(
    cluster: Cluster, client: Celery, deployment: Deployment
) -> None:
    other = cluster.settings().model_copy(update={"namespace": "other", "queue": "other-queue"})
    environ = {**os.environ, "PACELINE_REDIS_URL": cluster.redis_url, "PACELINE_MODEL": other.model}
    environ |= {"PACELINE_NAMESPACE": other.namespace, "PACELINE_QUEUE": other.queue}
    command = [sys.executable, "-m", "workers.run", "control"]
    with subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.DEVNULL) as control:
        elsewhere = Deployment.open(other)
        try:
            theirs = [client.send_task(GENERATE, kwargs=SHORT, queue=other.queue) for _ in range(5)]
            ours = [client.send_task(GENERATE, kwargs=SHORT) for _ in range(5)]
            assert {_answer(result).status for result in ours} == {"done"}
            wait_for(lambda: elsewhere.requests.active() == 5, what="the other instance's requests")
            assert not any(_is_known(deployment, result.id) for result in theirs)
        finally:
            elsewhere.close()
            control.terminate()


def test_tasks_sent_just_before_redis_is_killed_are_all_answered(cluster: Cluster, alone: Alone) -> None:
    requests = [{**SHORT, "max_tokens": 60, "temperature": 0.8, "seed": 200 + i} for i in range(12)]
    with stranger(cluster) as sender:
        ids = [sender.send_task(GENERATE, kwargs=fields).id for fields in requests]
    killed = cluster.signal("redis", signal.SIGKILL)
    cluster.await_restart("redis", killed)
    started = time.monotonic()
    with stranger(cluster) as reader:
        answers = [_answer(AsyncResult(id_, app=reader)) for id_ in ids]
    print(f"all answered {time.monotonic() - started:.1f} s after Redis was back")
    expected = [alone(GenerateRequest.model_validate(fields)) for fields in requests]
    assert [list(answer.token_ids) for answer in answers] == expected


def _fill(cluster: Cluster) -> list[dict[str, Any]]:
    """Send as many requests as it takes at once; they do not end by themselves."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: cluster.post({**LONG, "wait": False}), range(MAX_ACTIVE)))


def _refused(cluster: Cluster) -> tuple[int, str | None]:
    with pytest.raises(urllib.error.HTTPError) as refused:
        cluster.post({**SHORT, "wait": False})
    with refused.value as error:
        return error.code, error.headers["Retry-After"]


def _is_known(deployment: Deployment, request_id: str) -> bool:
    return deployment.requests.task(request_id) is not None


def _cancel(deployment: Deployment, ids: list[str]) -> None:
    for request_id in ids:
        deployment.requests.end(request_id, FinishReason.CANCELLED)
