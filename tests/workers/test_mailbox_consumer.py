"""Attending a mailbox, and the pulse behind it, over a real Redis: what a doorbell starts and how it ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from celery.worker import state as worker_state

from app.config import ROOT
from app.messages import Settle
from app.store.keys import Keys
from tests.models import byte_fallback_tokenizer
from workers.celery_app import make_celery
from workers.deployment import Office
from workers.heartbeat import Pulse
from workers.mailbox_consumer import attend

BOX = "verify:verify-1"
LEASE_S = 0.4  # as in the fixture


@pytest.fixture
def office(lone_office: Office) -> Office:
    return lone_office


class Handler:
    """Notes what it was given; does nothing else unless told to."""

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
    return [Settle(request_id=id_).model_dump_json() for id_ in ids]


def test_all_that_waits_is_one_batch_and_an_idle_attendant_leaves(office: Office) -> None:
    office.mailboxes.post(BOX, _mail("a", "b"))
    handler = Handler()
    attend(office, Pulse(office, "verify", "v"), BOX, Settle, handler)
    assert handler.batches == [["a", "b"]]
    assert office.mailboxes.post(BOX, _mail("c")), "nobody attends any more: the next one has to ring"


def test_what_is_no_message_is_dropped_and_its_neighbours_are_served(office: Office) -> None:
    office.mailboxes.post(BOX, ["", *_mail("a"), "{", '{"request_id": 3}', *_mail("b")])
    handler = Handler()
    attend(office, Pulse(office, "verify", "v"), BOX, Settle, handler)
    assert handler.batches == [["a", "b"]]


def test_failing_handler_loses_its_batch_and_goes_on_with_the_next(office: Office) -> None:
    handler, pulse = Handler(), Pulse(office, "verify", "v")

    def post_more() -> None:
        office.mailboxes.post(BOX, _mail("b"))
        raise ValueError("a poisonous message")

    handler.then["a"] = post_more
    office.mailboxes.post(BOX, _mail("a"))
    attend(office, pulse, BOX, Settle, handler)
    assert handler.batches == [["a"], ["b"]]


def test_mailbox_has_one_attendant_among_processes_and_one_thread_in_each(office: Office) -> None:
    handler, pulse = Handler(), Pulse(office, "verify", "v")
    office.mailboxes.post(BOX, _mail("a"))
    assert office.mailboxes.attend(BOX, "another process")
    attend(office, pulse, BOX, Settle, handler)
    assert handler.batches == [] and office.mailboxes.waiting(BOX) == 1
    assert office.mailboxes.release(BOX, "another process")
    nested = Handler()

    def attend_again() -> None:
        office.mailboxes.post(BOX, _mail("b"))
        attend(office, pulse, BOX, Settle, nested)

    handler.then["a"] = attend_again
    attend(office, pulse, BOX, Settle, handler)
    assert handler.batches == [["a"], ["b"]] and nested.batches == []
    assert not pulse.holds(BOX)


def test_attendant_that_slept_through_its_lease_takes_it_again(office: Office) -> None:
    handler = Handler()

    def sleep() -> None:  # no pulse is beating here: the lease runs out, as for a frozen process
        time.sleep(2 * LEASE_S)
        office.mailboxes.post(BOX, _mail("b"))

    handler.then["a"] = sleep
    office.mailboxes.post(BOX, _mail("a"))
    attend(office, Pulse(office, "verify", "v"), BOX, Settle, handler)
    assert handler.batches == [["a"], ["b"]]


def test_attendant_whose_mailbox_has_gone_to_another_leaves_it_alone(office: Office) -> None:
    handler = Handler()

    def lose() -> None:
        time.sleep(2 * LEASE_S)
        assert office.mailboxes.attend(BOX, "another process")
        office.mailboxes.post(BOX, _mail("b"))

    handler.then["a"] = lose
    office.mailboxes.post(BOX, _mail("a"))
    attend(office, Pulse(office, "verify", "v"), BOX, Settle, handler)
    assert handler.batches == [["a"]]
    assert office.mailboxes.take(BOX, "another process", 10, 0.0) == _mail("b")


def test_long_stay_is_handed_over_by_a_ring(office: Office, redis_client: redis.Redis) -> None:
    office = _with(office, attend_s=0.2)
    office.mailboxes.post(BOX, _mail("a"))
    pulse = Pulse(office, "verify", "v")
    pulse.start()  # else the lease would not last
    attend(office, pulse, BOX, Settle, lambda messages: 0.01)  # always work at hand
    pulse.end()
    assert redis_client.llen(f"paceline.{BOX}") == 1
    assert office.mailboxes.attend(BOX, "the next one")


def test_attendant_that_lost_its_mailbox_without_noticing_leaves_soon(
    office: Office, redis_client: redis.Redis
) -> None:
    """Redis came back without the lease, and another process was quicker."""
    handler = Handler()

    def lose() -> None:
        redis_client.delete(Keys(office.settings.namespace).attend(BOX))
        assert office.mailboxes.attend(BOX, "another process")

    handler.then["a"] = lose
    office.mailboxes.post(BOX, _mail("a"))
    started = time.monotonic()
    attend(office, Pulse(office, "verify", "v"), BOX, Settle, handler)
    assert time.monotonic() - started < office.settings.attend_s / 2
    assert not office.mailboxes.attend(BOX, "a third one")


def test_worker_that_is_told_to_stop_leaves_its_mailbox_whatever_there_is_to_do(
    office: Office, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(messages: list[Settle]) -> float:
        monkeypatch.setattr(worker_state, "should_stop", 0)
        return 0.01  # always work at hand

    started = time.monotonic()
    attend(office, Pulse(office, "verify", "v"), BOX, Settle, stop)
    assert time.monotonic() - started < office.settings.attend_s / 2
    assert redis_client.llen(f"paceline.{BOX}") == 1, "whoever comes next is rung for"
    assert office.mailboxes.attend(BOX, "the next one")


def test_work_that_has_ended_is_progress_whatever_became_of_it(office: Office) -> None:
    """Else the pulse would end the process for it, long after."""
    handler, pulse = Handler(), Pulse(office, "verify", "v")
    handler.then["b"] = ValueError("a poisonous message")
    for ids in ("a", "b"):
        office.mailboxes.post(BOX, _mail(*ids))
        attend(office, pulse, BOX, Settle, handler)
    time.sleep(0.2)
    before_s = time.time()
    pulse.begin()
    (node,) = office.nodes.live()
    pulse.end()
    assert node.progress_s >= before_s


def test_pulse_waits_for_a_dead_namesake_and_then_has_the_name(office: Office) -> None:
    assert office.nodes.beat("verify", "v", "dead", progress_s=0.0, info={})
    pulse = Pulse(office, "verify", "v")
    started = time.monotonic()
    pulse.begin()
    assert time.monotonic() - started > LEASE_S / 2
    assert [node.owner for node in office.nodes.live("verify")] == [pulse.owner]
    pulse.end()
    assert office.nodes.live("verify") == []


def test_clean_end_frees_the_name_for_good(office: Office) -> None:
    def slowly() -> dict[str, object]:
        time.sleep(LEASE_S / 2)
        return {}

    pulse = Pulse(office, "verify", "v", info=slowly)
    pulse.begin()
    time.sleep(LEASE_S / 2)  # the next beat is under way by now: it must not take the name again
    pulse.end()
    time.sleep(LEASE_S)
    assert office.nodes.live("verify") == [] and not pulse.is_alive()


HUNG = """
import sys, time
import workers.pulse as pulses
from pathlib import Path
from app.config import Settings
from app.engine.tokenizer import Tokenizer
from workers.celery_app import make_celery
from workers.office import Office

pulses.HUNG_S = 0.5
settings = Settings(redis_url=sys.argv[1], lease_s=0.4)
pulse = pulses.Pulse(Office(settings, make_celery(settings), Tokenizer(Path(sys.argv[2]))), "verify", "v")
pulse.begin()
pulse.busy(sys.argv[3] == "hung")
time.sleep(1.5)
"""


@pytest.mark.parametrize(("state", "status"), [("hung", -signal.SIGKILL), ("idle", 0)])
def test_process_that_hangs_in_one_piece_of_work_is_ended(
    redis_client: redis.Redis, redis_url: str, tmp_path: Path, state: str, status: int
) -> None:
    byte_fallback_tokenizer(tmp_path)
    command = [sys.executable, "-c", HUNG, redis_url, str(tmp_path), state]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60).returncode == status


def _with(office: Office, **changes: object) -> Office:
    """The same office under other settings."""
    changed = office.settings.model_copy(update=changes)
    return Office(changed, make_celery(changed), office.tokenizer)
