"""Test a pending commit, over a real Redis whose replies are lost."""

import time

import pytest
import redis

from app.errors import StoreUnavailable
from app.messages import Event, FinishReason
from app.state import CachedSequence, Sequence
from app.store.mailbox import Mailboxes
from app.store.protocol import Committed, Outcome, SentCommit
from app.store.requests import RequestStore
from app.verifier.pending_commit import PendingCommit
from tests.app.store.bench import make_record, tokens_event

BOX = "verify:v"


class LosesReplies(RequestStore):
    """The real store behind a network that breaks after the scripts have run."""

    broken = False
    unsendable = False

    def commit_later(self, owner: str, events: list[tuple[str, Event]], mailbox: str) -> SentCommit:
        if self.unsendable:
            raise StoreUnavailable("gone")
        sent = super().commit_later(owner, events, mailbox)
        return SentCommit(sent.is_ready, lambda: self._heard(sent.read()))

    def _heard(self, committed: Committed) -> Committed:
        if self.broken:
            raise StoreUnavailable("gone")
        return committed


@pytest.fixture
def store(redis_client: redis.Redis) -> LosesReplies:
    store = LosesReplies(redis_client, "test", ttl_s=60.0, active_ttl_s=60.0)
    store.create(make_record(), limit=1)
    assert store.assign("r1", "v1")
    return store


@pytest.mark.parametrize("finish", [None, FinishReason.STOP])
def test_a_commits_outcome_comes_once_however_often_replies_are_lost(
    store: LosesReplies, finish: FinishReason | None
) -> None:
    record = make_record()
    sequence, event = (
        Sequence(record, CachedSequence.of(record, [*record.prompt_ids])),
        tokens_event(0, 5, 6, finish=finish),
    )
    committing = PendingCommit("v1", BOX, store)
    assert committing.settle() == []
    committing.send([(sequence, event)])
    store.broken = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            committing.settle()
    store.broken = False
    assert committing.settle() == [(sequence, event, Outcome.COMMITTED)]
    assert committing.settle() == []
    assert store.events("r1", 0) == [event]


def test_the_mail_that_waited_at_a_commit_is_known(store: LosesReplies, redis_client: redis.Redis) -> None:
    record = make_record()
    sequence = Sequence(record, CachedSequence.of(record, [*record.prompt_ids]))
    boxes = Mailboxes(redis_client, "test", lease_s=1.0)
    committing = PendingCommit("v1", BOX, store)
    assert committing.has_mail(), "nothing was committed, so it is not known"
    committing.send([])
    assert committing.has_mail(), "nor by a step of prompts alone"
    committing.send([(sequence, tokens_event(0, 5))])
    await_ready(committing)
    assert not committing.has_mail()
    boxes.post(BOX, ["item", "item"])
    assert [outcome for _, _, outcome in committing.settle()] == [Outcome.COMMITTED], "it was read already"
    assert committing.has_mail(), "no commit is pending"
    store.broken = True
    committing.send([(sequence, tokens_event(1, 6))])
    await_ready(committing)
    assert not committing.has_mail(), "as it was when a commit was last heard of"
    store.broken = False
    assert [outcome for _, _, outcome in committing.settle()] == [Outcome.COMMITTED], "sent again, which counts once"
    committing.send([(sequence, tokens_event(2, 7))])
    assert committing.has_mail(), "two items waited"
    committing.settle()
    assert store.snapshot("r1").tokens == (5, 6, 7)


def test_a_commit_that_could_not_be_sent_is_pending_all_the_same(store: LosesReplies) -> None:
    record = make_record()
    sequence, event = Sequence(record, CachedSequence.of(record, [*record.prompt_ids])), tokens_event(0, 5)
    committing = PendingCommit("v1", BOX, store)
    store.unsendable = True
    with pytest.raises(StoreUnavailable):
        committing.send([(sequence, event)])
    assert committing.is_ready, "there is no reply to wait for"
    with pytest.raises(StoreUnavailable):
        committing.settle()
    store.unsendable = False
    assert committing.settle() == [(sequence, event, Outcome.COMMITTED)]


def await_ready(committing: PendingCommit) -> None:
    """Wait until the commit's reply has come."""
    until_s = time.monotonic() + 10.0
    while not committing.is_ready:
        assert time.monotonic() < until_s, "no reply came"
        time.sleep(0.001)
