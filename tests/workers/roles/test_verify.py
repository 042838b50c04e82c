"""Test a verifier's loop over a real Redis, with a tiny model and no other node: no request depends on mail."""

from collections.abc import Callable, Iterator
from functools import partial
from math import inf

import pytest
import redis

from app.assembly.fuser import build_fuser
from app.counters import field
from app.messages import SETTLE, FinishReason, Status, ToVerifier
from app.metrics import AUDITS, GROUP
from app.pipeline import LocalPipeline
from app.plans import PLANS
from app.store.keys import Keys
from tests import fakes
from tests.workers.conftest import with_settings
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat
from workers.mailbox_consumer import LINGER_S
from workers.roles import verify
from workers.roles.verify import VerifierLoop

BOX = "verify:v"
PROMPT = [3, 1, 4, 1, 5]
OWNER = "owner"  # as of a pipeline of fakes
RUNNER = fakes.served()


@pytest.fixture(autouse=True)
def _all_pages_come_back() -> Iterator[None]:
    yield
    assert RUNNER.pool.num_free == RUNNER.pool.num_pages


@pytest.fixture
def local(lone_deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalPipeline]:
    """Provide a pipeline with room for one sequence at a time that reconciles with the store at each step."""
    monkeypatch.setattr(verify, "RECONCILE_EVERY_S", 0.0)
    local = fakes.pipeline(RUNNER, store=lone_deployment.requests, max_sequences=1)  # type: ignore[arg-type]
    yield local
    local.verifier.collect()
    local.verifier.commit()
    local.verifier.collect()  # hears of it
    local.verifier.release([*local.verifier.sequences])


@pytest.fixture
def loop(lone_deployment: Deployment, local: LocalPipeline) -> Iterator[VerifierLoop]:
    heartbeat = Heartbeat(lone_deployment, "verify", "v", owner=OWNER)
    heartbeat.begin()
    yield VerifierLoop(lone_deployment, local.verifier, local.fuser, heartbeat, BOX)
    heartbeat.end()


@pytest.fixture
def give(lone_deployment: Deployment) -> Callable[..., str]:
    """Store a request and assign it, without mail to its owner."""

    def give(request_id: str, max_tokens: int = 5, created_s: float = 1.0, task: str | None = None) -> str:
        record = fakes.record(PROMPT, max_tokens, request_id=request_id, created_s=created_s)
        record = record.model_copy(update={"is_task": task is not None})
        assert lone_deployment.requests.create(record, limit=9, task=task)
        assert lone_deployment.requests.assign(request_id, OWNER)
        return request_id

    return give


def _run(loop: VerifierLoop, is_done: Callable[[], bool], *mail: ToVerifier) -> None:
    """Step until the condition holds, each time with this mail."""
    for _ in range(100):
        if is_done():
            return
        loop.handle([*mail])
    raise AssertionError("it never is")


def _has_ended(deployment: Deployment, request_id: str) -> bool:
    return deployment.requests.snapshot(request_id).status is not Status.ACTIVE


def test_a_request_whose_mail_was_lost_is_done(
    lone_deployment: Deployment, loop: VerifierLoop, give: Callable[..., str]
) -> None:
    for request_id in (give("first"), give("second")):
        _run(loop, lambda request_id=request_id: _has_ended(lone_deployment, request_id))
        found = lone_deployment.requests.snapshot(request_id)
        assert list(found.tokens) == fakes.alone(fakes.tiny(), PROMPT, 5)


@pytest.mark.parametrize("is_taken_over", [True, False])
def test_a_sequence_no_longer_owned_is_released_before_its_turn(
    lone_deployment: Deployment, loop: VerifierLoop, local: LocalPipeline, give: Callable[..., str], is_taken_over: bool
) -> None:
    running, waiting = give("running", 200), give("waiting", created_s=2.0)
    loop.handle([ToVerifier(adopt=(running, waiting))])
    assert local.verifier.sequences.keys() == {running, waiting}
    if is_taken_over:
        loop._heartbeat.end()
        assert lone_deployment.requests.assign(waiting, "another")
    else:
        lone_deployment.requests.end(waiting, FinishReason.CANCELLED)
    loop.handle([])
    assert local.verifier.sequences.keys() == {running}
    lone_deployment.requests.end(running, FinishReason.CANCELLED)
    loop.handle([])
    assert not local.verifier.sequences


def test_a_request_that_cannot_be_read_fails_alone(
    lone_deployment: Deployment, loop: VerifierLoop, give: Callable[..., str], redis_client: redis.Redis
) -> None:
    spoilt, sound = give("a"), give("b")
    key = Keys(lone_deployment.settings.namespace).request(spoilt)
    record = redis_client.hget(key, "record")
    redis_client.hset(key, "record", '{"of": "another version"}')
    _run(loop, lambda: _has_ended(lone_deployment, sound), ToVerifier(adopt=(spoilt, sound)))
    redis_client.hset(key, "record", str(record))
    assert (found := lone_deployment.requests.snapshot(spoilt)).status is Status.FAILED
    assert found.error == "the stored request cannot be read"


def test_sequences_of_an_unattended_mailbox_are_rung_for(
    lone_deployment: Deployment, loop: VerifierLoop, give: Callable[..., str]
) -> None:
    loop.beat()
    assert not lone_deployment.mailboxes.waiting(BOX), "there is nothing to do"
    give("r")
    assert loop._heartbeat.attend(BOX)
    loop.beat()
    assert not lone_deployment.mailboxes.waiting(BOX), "it is attended"
    loop._heartbeat.stop_attending(BOX)
    loop.beat()
    assert lone_deployment.mailboxes.waiting(BOX) == 1


def test_step_costs_are_looked_at_before_the_first_request_once_drafters_are_up(
    lone_deployment: Deployment, local: LocalPipeline, give: Callable[..., str], redis_client: redis.Redis
) -> None:
    heartbeat, looks = Heartbeat(lone_deployment, "verify", "v", owner=OWNER), list[bool]()
    heartbeat.begin()

    def look(goes_on: Callable[[], bool]) -> bool:
        looks.append(goes_on())
        return looks[-1]

    loop = VerifierLoop(lone_deployment, local.verifier, local.fuser, heartbeat, BOX, look)
    loop.beat()
    loop.handle([])
    assert not lone_deployment.mailboxes.waiting(BOX) and not looks, "no drafter is up yet"
    info = {"drafters": ["d"], "tokenizer": lone_deployment.tokenizer.sha256}
    lone_deployment.nodes.beat("draft", "d", "another", progress_s=1.0, info=info)
    loop.beat()
    assert lone_deployment.mailboxes.waiting(BOX) == 1
    loop.handle([])
    assert looks == [False], "mail interrupts it"
    redis_client.delete(Keys(lone_deployment.settings.namespace).mail(BOX))
    lone_deployment.nodes.retire("draft", "d", "another")  # it would not answer
    loop.beat()
    give("r")
    _run(loop, lambda: _has_ended(lone_deployment, "r"))
    loop.handle([])
    assert len(looks) == 1, "more requests may come at once"
    for _ in range(2):
        loop._worked_s = -inf
        loop.handle([])
    assert looks == [False, True], "one is enough"
    loop.beat()
    assert not lone_deployment.mailboxes.waiting(BOX)
    heartbeat.end()


@pytest.mark.parametrize("changes", [{"drafters": ()}, {"plan": PLANS["off"]}])
def test_step_costs_are_looked_at_where_no_drafter_will_come(
    lone_deployment: Deployment, local: LocalPipeline, changes: dict[str, object]
) -> None:
    alone = with_settings(lone_deployment, **changes)
    heartbeat, looks = Heartbeat(alone, "verify", "v", owner=OWNER), list[bool]()
    loop = VerifierLoop(alone, local.verifier, local.fuser, heartbeat, BOX, lambda goes_on: not looks.append(goes_on()))
    loop.beat()
    assert alone.mailboxes.waiting(BOX) == 1
    loop.handle([])
    assert looks == [False], "its own mail still waits"
    alone.close()


def test_tasks_hear_of_their_requests_ends(
    lone_deployment: Deployment, local: LocalPipeline, loop: VerifierLoop, give: Callable[..., str]
) -> None:
    give("of a task", 1, task="{}")
    give("of no task", 1, created_s=2.0)
    _run(loop, lambda: not local.verifier.sequences and not lone_deployment.requests.active())
    assert lone_deployment.mailboxes.waiting(SETTLE) == 1
    assert "of a task" in str(lone_deployment.mailboxes.first(SETTLE))


def test_audits_wait_for_requests_and_give_way_to_them(
    lone_deployment: Deployment, local: LocalPipeline, loop: VerifierLoop, give: Callable[..., str]
) -> None:
    def counted() -> dict[str, list[float]]:
        return {name: sums for name, (_, sums) in lone_deployment.counters.changes(GROUP).items() if "audit" in name}

    first = give("first", 20)
    _run(loop, lambda: _has_ended(lone_deployment, first))
    assert 0 < (loop.handle([ToVerifier(audit=(first,))]) or 0) < LINGER_S and not counted(), (
        "more requests may come at once"
    )
    loop._worked_s = -inf
    beat = partial(lone_deployment.nodes.beat, "verify", "neighbour", "another", progress_s=1.0)
    for sequences in (3, 0):
        beat(info={"host": lone_deployment.machine, "sequences": sequences})
        loop.beat()
        assert (loop.handle([]) == 0.0) is (not sequences), "none runs beside a neighbour's requests"
    assert RUNNER.pool.num_free < RUNNER.pool.num_pages
    second = give("second", created_s=2.0)
    loop.handle([ToVerifier(adopt=(second,))])
    assert [*local.verifier.sequences] == [second]
    assert RUNNER.pool.num_pages - RUNNER.pool.num_free == 1, "the request's own page"
    _run(loop, lambda: _has_ended(lone_deployment, second) and not local.verifier.sequences)
    loop._worked_s = -inf
    _run(loop, lambda: loop.handle([]) is None)
    assert counted() == {field(AUDITS, ("same",)): [1.0]}


def test_a_verifier_drafts_without_models_itself(
    lone_deployment: Deployment, local: LocalPipeline, loop: VerifierLoop, give: Callable[..., str]
) -> None:
    fuser = build_fuser(lone_deployment.settings, lone_deployment.tokenizer, lone_deployment.requests)
    loop = VerifierLoop(lone_deployment, local.verifier, fuser, Heartbeat(lone_deployment, "verify", "v"), BOX)
    loop.beat()
    request_id = give("r", max_tokens=40)
    _run(loop, lambda: _has_ended(lone_deployment, request_id))
    found = lone_deployment.requests.snapshot(request_id)
    assert list(found.tokens) == fakes.alone(fakes.tiny(), PROMPT, 40)
    assert found.stats.by_drafter.keys() & {"lookup", "suffix"}, "its text has parts that come again"
    assert not lone_deployment.mailboxes.waiting("fuse"), "no other process was asked"
