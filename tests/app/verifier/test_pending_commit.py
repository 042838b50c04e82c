"""Test a pending commit, over a real Redis whose replies are lost."""

from collections.abc import Callable

import pytest
import redis

from app.errors import StoreUnavailable
from app.messages import Event, FinishReason
from app.state import CachedSequence, Sequence
from app.store.mailbox import Mailboxes
from app.store.protocol import Committed, Outcome
from app.store.requests import RequestStore
from app.verifier.pending_commit import PendingCommit
from tests.app.store.bench import make_record, tokens_event

BOX = "verify:v"


class LosesReplies(RequestStore):
    """The real store behind a network that breaks after the scripts have run."""

    broken = False

    def commit_later(self, owner: str, events: list[tuple[str, Event]], mailbox: str) -> Callable[[], Committed]:
        reply = super().commit_later(owner, events, mailbox)
        return lambda: self._heard(reply())

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
    assert committing.mail() is None, "nothing was committed"
    committing.send([])
    assert committing.mail() is None, "nor by a step of prompts alone"
    committing.send([(sequence, tokens_event(0, 5))])
    assert committing.mail() == 0
    boxes.post(BOX, ["item", "item"])
    assert [outcome for _, _, outcome in committing.settle()] == [Outcome.COMMITTED], "it was read already"
    assert committing.mail() is None
    store.broken = True
    committing.send([(sequence, tokens_event(1, 6))])
    assert committing.mail() is None
    store.broken = False
    assert committing.mail() == 2, "committed again, which counts once"
    assert [outcome for _, _, outcome in committing.settle()] == [Outcome.COMMITTED]
    assert store.snapshot("r1").tokens == (5, 6)
