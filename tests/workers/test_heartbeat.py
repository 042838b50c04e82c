"""Test that a heartbeat renews leases and reports progress while its process hangs, over a real Redis."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from app.config import ROOT
from app.messages import Settle
from tests.models import byte_fallback_tokenizer
from tests.workers.records import task_record
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat
from workers.mailbox_consumer import consume_mailbox

BOX = "verify:v"
LEASE_S = 0.4  # as in the fixture


@pytest.fixture
def heartbeat(lone_deployment: Deployment) -> Iterator[Heartbeat]:
    heartbeat = Heartbeat(lone_deployment, "verify", "v")
    heartbeat.begin()
    yield heartbeat
    heartbeat.end()


def _until(condition: Callable[[], Any], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def _no_room(client: redis.Redis) -> Iterator[None]:
    """Make Redis refuse all writes, which is as bad as an outage."""
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


def _at_work(deployment: Deployment, heartbeat: Heartbeat, work: Callable[[], None]) -> threading.Thread:
    """Start a thread that attends the mailbox and works on one message for so long."""
    deployment.mailboxes.post(BOX, [Settle(request_id="r").json()])
    handle = lambda messages: work() if messages else None  # noqa: E731
    thread = threading.Thread(target=consume_mailbox, args=(deployment, heartbeat, BOX, Settle, handle))
    thread.start()
    return thread


def test_a_mailbox_stays_ours_however_long_a_piece_of_work_takes(
    lone_deployment: Deployment, heartbeat: Heartbeat
) -> None:
    may_end, has_begun = threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        may_end.wait(10.0)

    attendant = _at_work(lone_deployment, heartbeat, work)
    assert has_begun.wait(10.0)
    taken_until_s = time.monotonic() + 3 * LEASE_S
    while time.monotonic() < taken_until_s:
        assert not lone_deployment.mailboxes.attend(BOX, "another process")
        time.sleep(LEASE_S / 10)
    may_end.set()
    attendant.join()


def test_a_hung_process_is_alive_and_reports_no_progress(lone_deployment: Deployment, heartbeat: Heartbeat) -> None:
    may_end, has_begun = threading.Event(), threading.Event()
    began_s: list[float] = []

    def work() -> None:
        began_s.append(time.time())
        has_begun.set()
        may_end.wait(10.0)

    def progress_s() -> float:
        (node,) = lone_deployment.nodes.live("verify")
        return node.progress_s

    attendant = _at_work(lone_deployment, heartbeat, work)
    assert has_begun.wait(10.0)
    time.sleep(2 * LEASE_S)
    assert progress_s() < began_s[0] + LEASE_S / 2, "as of when the work began, give or take a beat"
    may_end.set()
    attendant.join()
    ended_s = time.time()
    _until(lambda: progress_s() > ended_s)


def test_an_outage_of_redis_ends_neither_heartbeat_nor_process(
    lone_deployment: Deployment, redis_client: redis.Redis
) -> None:
    heartbeat = Heartbeat(lone_deployment, "verify", "v")
    heartbeat.begin()
    with _no_room(redis_client):
        consume_mailbox(lone_deployment, heartbeat, BOX, Settle, lambda messages: None)  # no error
        _until(lambda: not lone_deployment.nodes.live())
    assert not heartbeat.attends(BOX)
    _until(lambda: [node.owner for node in lone_deployment.nodes.live()] == [heartbeat.owner])
    heartbeat.end()


class _Broken:
    def beat(self) -> None:
        raise ValueError("a fault of this task")

    def close(self) -> None: ...


def test_orphans_are_swept_unprompted_whatever_a_task_does(lone_deployment: Deployment) -> None:
    heartbeat = Heartbeat(lone_deployment, "verify", "v")
    heartbeat.begin([_Broken()])
    lone_deployment.requests.create(task_record("orphan"), limit=9)
    _until(lambda: lone_deployment.requests.owned(heartbeat.owner) == {"orphan"})
    heartbeat.end()


ROBBED = """
import sys, time
from pathlib import Path
from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from workers.celery_app import make_celery
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat

settings = Settings(redis_url=sys.argv[1], lease_s=0.4)
heartbeat = Heartbeat(Deployment(settings, make_celery(settings), Tokenizer(Path(sys.argv[2]))), "verify", "v")
heartbeat.begin()
print("lives", flush=True)
time.sleep(20.0)
"""


def test_a_process_whose_name_has_gone_to_another_leaves(
    redis_client: redis.Redis, redis_url: str, lone_deployment: Deployment, tmp_path: Path
) -> None:
    """A process that was frozen must not go on beside its successor."""
    byte_fallback_tokenizer(tmp_path)
    command = [sys.executable, "-c", ROBBED, redis_url, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as frozen:
        assert frozen.stdout is not None and frozen.stdout.readline() == "lives\n"
        frozen.send_signal(signal.SIGSTOP)
        successor = Heartbeat(lone_deployment, "verify", "v")
        successor.begin()
        frozen.send_signal(signal.SIGCONT)
        assert frozen.wait(10.0) == -signal.SIGTERM
        assert [node.owner for node in lone_deployment.nodes.live()] == [successor.owner]
        successor.end()
