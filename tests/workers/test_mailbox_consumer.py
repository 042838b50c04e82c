"""Test attending a mailbox, and its heartbeat, over a real Redis: from the doorbell to the release."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from celery.worker import state as worker_state

from app.config import ROOT
from app.local.ports import any_free, is_free
from app.messages import Settle
from app.store.keys import Keys
from tests.models import byte_fallback_tokenizer
from tests.workers.conftest import with_settings
from workers import mailbox_consumer
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat
from workers.mailbox_consumer import consume_mailbox

BOX = "verify:verify-1"
LEASE_S = 0.4  # as in the fixture


@pytest.fixture
def deployment(lone_deployment: Deployment) -> Deployment:
    return lone_deployment


class Handler:
    """A handler that keeps the batches and does what `then` names."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.then: dict[str, object] = {}  # request id to what happens when it comes: an error, or a call

    def __call__(self, messages: list[Settle]) -> None:
        ids = [message.request_id for message in messages]
        if ids:
            self.batches.append(ids)
        for id_ in ids:
            match self.then.get(id_):
                case Exception() as error:
                    raise error
                case None:
                    pass
                case call:
                    call()  # type: ignore[operator]


def _mail(*ids: str) -> list[str]:
    return [Settle(request_id=id_).json() for id_ in ids]


def test_all_that_waits_is_one_batch_and_an_idle_attendant_leaves(deployment: Deployment) -> None:
    deployment.mailboxes.post(BOX, _mail("a", "b"))
    handler = Handler()
    consume_mailbox(deployment, Heartbeat(deployment, "verify", "v"), BOX, Settle, handler)
    assert handler.batches == [["a", "b"]]
    assert deployment.mailboxes.post(BOX, _mail("c")), "it is not attended any more: the next one has to ring"


def test_an_item_that_is_no_message_is_dropped_and_others_served(deployment: Deployment) -> None:
    deployment.mailboxes.post(BOX, ["", *_mail("a"), "{", '{"request_id": 3}', *_mail("b")])
    handler = Handler()
    consume_mailbox(deployment, Heartbeat(deployment, "verify", "v"), BOX, Settle, handler)
    assert handler.batches == [["a", "b"]]


def test_a_failing_handler_loses_its_batch_and_serves_the_next(deployment: Deployment) -> None:
    handler, heartbeat = Handler(), Heartbeat(deployment, "verify", "v")

    def post_more() -> None:
        deployment.mailboxes.post(BOX, _mail("b"))
        raise ValueError("a poisonous message")

    handler.then["a"] = post_more
    deployment.mailboxes.post(BOX, _mail("a"))
    consume_mailbox(deployment, heartbeat, BOX, Settle, handler)
    assert handler.batches == [["a"], ["b"]]


def test_a_mailbox_has_one_attending_thread_among_all_processes(deployment: Deployment) -> None:
    handler, heartbeat = Handler(), Heartbeat(deployment, "verify", "v")
    deployment.mailboxes.post(BOX, _mail("a"))
    assert deployment.mailboxes.attend(BOX, "another process")
    consume_mailbox(deployment, heartbeat, BOX, Settle, handler)
    assert handler.batches == [] and deployment.mailboxes.waiting(BOX) == 1
    assert deployment.mailboxes.release(BOX, "another process")
    nested = Handler()

    def attend_again() -> None:
        deployment.mailboxes.post(BOX, _mail("b"))
        consume_mailbox(deployment, heartbeat, BOX, Settle, nested)

    handler.then["a"] = attend_again
    consume_mailbox(deployment, heartbeat, BOX, Settle, handler)
    assert handler.batches == [["a"], ["b"]] and nested.batches == []
    assert not heartbeat.attends(BOX)


def test_an_attendant_that_slept_through_its_lease_renews_it(deployment: Deployment) -> None:
    handler = Handler()

    def sleep() -> None:  # no heartbeat is beating here: the lease runs out, as for a frozen process
        time.sleep(2 * LEASE_S)
        deployment.mailboxes.post(BOX, _mail("b"))

    handler.then["a"] = sleep
    deployment.mailboxes.post(BOX, _mail("a"))
    consume_mailbox(deployment, Heartbeat(deployment, "verify", "v"), BOX, Settle, handler)
    assert handler.batches == [["a"], ["b"]]


def test_an_attendant_leaves_alone_a_mailbox_that_another_took(deployment: Deployment) -> None:
    handler = Handler()

    def lose() -> None:
        time.sleep(2 * LEASE_S)
        assert deployment.mailboxes.attend(BOX, "another process")
        deployment.mailboxes.post(BOX, _mail("b"))

    handler.then["a"] = lose
    deployment.mailboxes.post(BOX, _mail("a"))
    consume_mailbox(deployment, Heartbeat(deployment, "verify", "v"), BOX, Settle, handler)
    assert handler.batches == [["a"]]
    assert deployment.mailboxes.take(BOX, "another process", 10, 0.0) == _mail("b")


def test_long_stay_is_handed_over_by_a_ring(
    deployment: Deployment, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_consumer, "ATTEND_S", 0.2)
    deployment.mailboxes.post(BOX, _mail("a"))
    heartbeat = Heartbeat(deployment, "verify", "v")
    heartbeat.start()  # else the lease would not last
    consume_mailbox(deployment, heartbeat, BOX, Settle, lambda messages: 0.01)  # always work at hand
    heartbeat.end()
    assert redis_client.llen(f"paceline.{BOX}") == 1
    assert deployment.mailboxes.attend(BOX, "the next one")


def test_an_attendant_that_lost_its_mailbox_unnoticed_leaves_soon(
    deployment: Deployment, redis_client: redis.Redis
) -> None:
    """Redis lost the lease in an outage, and another process took it."""
    handler = Handler()

    def lose() -> None:
        redis_client.delete(Keys(deployment.settings.namespace).attend(BOX))
        assert deployment.mailboxes.attend(BOX, "another process")

    handler.then["a"] = lose
    deployment.mailboxes.post(BOX, _mail("a"))
    started = time.monotonic()
    consume_mailbox(deployment, Heartbeat(deployment, "verify", "v"), BOX, Settle, handler)
    assert time.monotonic() - started < mailbox_consumer.ATTEND_S / 2
    assert not deployment.mailboxes.attend(BOX, "a third one")


def test_stopped_worker_leaves_its_mailbox_though_there_is_work(
    deployment: Deployment, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(messages: list[Settle]) -> float:
        monkeypatch.setattr(worker_state, "should_stop", 0)
        return 0.01  # always work at hand

    started = time.monotonic()
    consume_mailbox(deployment, Heartbeat(deployment, "verify", "v"), BOX, Settle, stop)
    assert time.monotonic() - started < mailbox_consumer.ATTEND_S / 2
    assert redis_client.llen(f"paceline.{BOX}") == 1, "the next attendant is rung for"
    assert deployment.mailboxes.attend(BOX, "the next one")


def test_far_mail_is_looked_for_while_there_is_work(deployment: Deployment) -> None:
    """A drafter node makes many guesses in the time of a way to Redis and back."""
    near, calls, came = deployment.mailboxes, list[None](), list[str]()
    url, port = urlsplit(deployment.settings.redis_url), any_free()
    far_url = url._replace(netloc=f"127.0.0.1:{port}").geturl()
    far = with_settings(deployment, redis_url=far_url, lease_s=10.0)
    held_back = subprocess.Popen([sys.executable, "-m", "lab.deployed.delay", str(port), str(url.port), "30"], cwd=ROOT)

    def work(messages: list[Settle]) -> float | None:
        came.extend(message.request_id for message in messages)
        calls.append(None)
        if messages and came == ["a"]:
            near.post(BOX, _mail("b"))
        return None if "b" in came else 0.0

    try:
        while is_free(port):
            time.sleep(0.01)
        near.post(BOX, _mail("a"))
        consume_mailbox(far, Heartbeat(far, "draft", "d"), BOX, Settle, work)
    finally:
        far.close()
        held_back.kill()
        held_back.wait()
    assert came == ["a", "b"] and len(calls) > 20  # looked for between the calls: four


def test_mail_that_comes_as_a_worker_stops_is_not_lost(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, came = list[None](), list[str]()

    def stop(messages: list[Settle]) -> float:
        came.extend(message.request_id for message in messages)
        calls.append(None)
        if len(calls) == 3:  # a look is under way
            deployment.mailboxes.post(BOX, _mail("a"))
            monkeypatch.setattr(worker_state, "should_stop", 0)
        return 0.0

    consume_mailbox(deployment, Heartbeat(deployment, "draft", "d"), BOX, Settle, stop)
    assert len(came) + deployment.mailboxes.waiting(BOX) == 1


def test_work_that_has_ended_is_progress_whatever_became_of_it(deployment: Deployment) -> None:
    """Otherwise the heartbeat would end the process for it, long after."""
    handler, heartbeat = Handler(), Heartbeat(deployment, "verify", "v")
    handler.then["b"] = ValueError("a poisonous message")
    for ids in ("a", "b"):
        deployment.mailboxes.post(BOX, _mail(*ids))
        consume_mailbox(deployment, heartbeat, BOX, Settle, handler)
    time.sleep(0.2)
    before_s = time.time()
    heartbeat.begin()
    (node,) = deployment.nodes.live()
    heartbeat.end()
    assert node.progress_s >= before_s


def test_a_heartbeat_waits_for_a_dead_namesakes_lease(deployment: Deployment) -> None:
    assert deployment.nodes.beat("verify", "v", "dead", progress_s=0.0, info={})
    heartbeat = Heartbeat(deployment, "verify", "v")
    started = time.monotonic()
    heartbeat.begin()
    assert time.monotonic() - started > LEASE_S / 2
    assert [node.owner for node in deployment.nodes.live("verify")] == [heartbeat.owner]
    heartbeat.end()
    assert deployment.nodes.live("verify") == []


def test_clean_end_frees_the_name_for_good(deployment: Deployment) -> None:
    def slowly() -> dict[str, object]:
        time.sleep(LEASE_S / 2)
        return {}

    heartbeat = Heartbeat(deployment, "verify", "v", info=slowly)
    heartbeat.begin()
    time.sleep(LEASE_S / 2)  # the next beat is under way by now: it must not take the name again
    heartbeat.end()
    time.sleep(LEASE_S)
    assert deployment.nodes.live("verify") == [] and not heartbeat.is_alive()


HUNG = """
import io, os, signal, subprocess, sys, time
import workers.heartbeat as heartbeats
from pathlib import Path
from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from workers.celery_app import make_celery
from workers.deployment import Deployment

heartbeats.HUNG_S, heartbeats.LONGEST_LOOK_S = 0.5, 0.2
settings = Settings(redis_url=sys.argv[1], lease_s=0.4)
opened = Deployment(settings, make_celery(settings), Tokenizer(Path(sys.argv[2])))
heartbeat = heartbeats.Heartbeat(opened, "verify", "v")
heartbeat.begin()
sys.stderr = io.StringIO()  # no file, as Celery has it
if sys.argv[3] != "idle":
    heartbeat.begin_work()
if sys.argv[3] == "frozen":
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.1)
    heartbeat.end_work()
time.sleep(1.5)
"""


@pytest.mark.parametrize(("state", "status"), [("hung", -signal.SIGKILL), ("idle", 0), ("frozen", 0)])
def test_process_that_hangs_in_one_piece_of_work_is_ended(
    redis_client: redis.Redis, redis_url: str, tmp_path: Path, state: str, status: int
) -> None:
    byte_fallback_tokenizer(tmp_path)
    command = [sys.executable, "-c", HUNG, redis_url, str(tmp_path), state]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60).returncode == status
