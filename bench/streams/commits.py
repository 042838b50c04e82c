"""Commit events as verifiers do, over the real commit path and without a model, at a stated pace."""

import sys
import threading
import time
import uuid

from app.messages import DrafterCounts, Event, FinishReason, Stats
from app.store.connect import packed
from app.store.protocol import Outcome
from app.store.requests import RequestStore
from bench.records import record_of
from workers.deployment import Deployment

SETTLE_S = 2.0  # before each measurement
BEAT_S = 0.5
WRITTEN_S = 1234567890.123456  # in the place of the moment at which a commit is sent
_WRITTEN = b"%.6f" % WRITTEN_S
FIRST_ID, IDS = 300, 40_000  # the tokens of all texts: any of the vocabulary that are no control tokens
TOKENS = 2  # an event: a draft token and the target's own
PROPOSERS = ("smol-general", "target")


class Committer(threading.Thread):
    """Commit an event to each of its requests at every tick, as one verifier's steps do."""

    def __init__(self, opened: Deployment, requests: int, pace: float, seconds: float) -> None:
        super().__init__(name="committer", daemon=True)
        self._opened, self._tick_s = opened, 1.0 / pace
        self._owner = uuid.uuid4().hex
        self._begun, self._over = threading.Event(), threading.Event()
        self._delay_s = 0.0
        self.events = self.failed = 0
        self._beat()
        self.start()  # before the rest: without heartbeats a deployment's verifier would take the requests
        self.ids = stored(opened.requests, self._owner, requests)
        self._steps = self._write(int(pace * (seconds + 2 * SETTLE_S)) + 2)

    def begin(self, delay_s: float) -> None:
        """Commit from `delay_s` on, so that the verifiers' steps do not fall on one moment."""
        self._delay_s = delay_s
        self._begun.set()

    def run(self) -> None:
        """Commit from `begin` to `end`; a tick that comes late is not made up for."""
        while not self._begun.wait(BEAT_S):
            self._beat()
        time.sleep(self._delay_s)
        connection = self._opened.requests._client.connection_pool.get_connection()
        offset, next_s, beaten_s = 0, time.monotonic(), time.monotonic()
        for step in self._steps:
            if self._over.wait(max(0.0, next_s - time.monotonic())):
                break
            next_s = max(next_s + self._tick_s, time.monotonic() - self._tick_s)
            for call in step:
                connection.send_packed_command([call.replace(_WRITTEN, b"%.6f" % time.time())])
            for _ in step:
                self.failed += sum(one != Outcome.COMMITTED for one in connection.read_response()[:-1])
            self.events += len(self.ids)
            offset += TOKENS
            if time.monotonic() - beaten_s > BEAT_S:
                self._beat()
                beaten_s = time.monotonic()
        last = event_of(offset, 1, FinishReason.LENGTH, time.time())
        ends = self._opened.requests.commit(self._owner, [(one, last) for one in self.ids])
        self.failed += sum(one is not Outcome.COMMITTED for one in ends)

    def end(self) -> None:
        """End all requests with their last event."""
        self._over.set()
        self.join()

    def close(self) -> None:
        """Retire the verifier."""
        self._opened.nodes.retire("paced", self._owner, self._owner)

    def _beat(self) -> None:
        self._opened.nodes.beat("paced", self._owner, self._owner, progress_s=time.time(), info={})

    def _write(self, steps: int) -> list[list[bytes]]:
        """Write the commits beforehand, so that it takes no time from what is measured."""
        events = (event_of(TOKENS * step, step + 1, None, WRITTEN_S) for step in range(steps))
        return [written(self._opened.requests, self._owner, self.ids, event, "paced") for event in events]


def stored(store: RequestStore, owner: str, count: int) -> list[str]:
    """Store requests that this verifier owns, and make the server load the script of commits; return their ids."""
    ids = [uuid.uuid4().hex for _ in range(count)]
    for one in ids:
        store.create(record_of((FIRST_ID,), 2**20, name=one), limit=sys.maxsize)
        store.assign(one, owner, "stand-in")
    store.commit(owner, [("none", event_of(0, 1, None, 0.0))])
    return ids


def written(store: RequestStore, owner: str, ids: list[str], event: Event, node: str) -> list[bytes]:
    """Write the commit of an event to each request as the store does, as calls to send to the server."""
    calls = store._commit_calls(owner, [(one, event) for one in ids], node)
    return [packed("EVALSHA", store._commit.sha, len(keys), *keys, *args) for keys, args in calls]


def event_of(offset: int, rounds: int, reason: FinishReason | None, written_s: float) -> Event:
    """Make a round's event of TOKENS tokens, as a verifier with drafters would, of this wall clock time."""
    return Event(
        offset=offset,
        tokens=tuple(token_at(offset + i) for i in range(TOKENS)),
        proposers=PROPOSERS,
        finish_reason=reason,
        stats=Stats(
            rounds=rounds,
            drafted=4 * rounds,
            accepted=rounds,
            by_drafter={
                name: DrafterCounts(drafted=2 * rounds, accepted=rounds // 2) for name in ("lookup", "general")
            },
            first_token_s=1.0,
            last_token_s=written_s,
        ),
    )


def token_at(position: int) -> int:
    """Return the token that all streams have at this place of the answer."""
    return FIRST_ID + position * 7919 % IDS
