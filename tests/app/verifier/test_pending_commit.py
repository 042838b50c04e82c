"""Test a pending commit, over a real Redis whose replies are lost."""

from collections.abc import Callable

import pytest
import redis

from app.errors import StoreUnavailable
from app.messages import Event, FinishReason
from app.state import CachedSequence, Sequence
from app.store.protocol import Outcome
from app.store.requests import RequestStore
from app.verifier.pending_commit import PendingCommit
from tests.app.store.bench import make_record, tokens_event


class LosesReplies(RequestStore):
    """The real store behind a network that breaks after the scripts have run."""

    broken = False

    def commit(self, owner: str, events: list[tuple[str, Event]]) -> list[Outcome]:
        return self._heard(super().commit(owner, events))

    def commit_later(self, owner: str, events: list[tuple[str, Event]]) -> Callable[[], list[Outcome]]:
        outcomes = super().commit_later(owner, events)
        return lambda: self._heard(outcomes())

    def _heard(self, outcomes: list[Outcome]) -> list[Outcome]:
        if self.broken:
            raise StoreUnavailable("gone")
        return outcomes


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
    committing = PendingCommit("v1", store)
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
