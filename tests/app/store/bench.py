"""Both stores of requests on one bench, with a switch for the owners that live."""

from collections.abc import Callable
from dataclasses import dataclass

import redis

from app.messages import DrafterCounts, Event, FinishReason, Record, Stats
from app.request import Sampling
from app.store.memory import MemoryStore
from app.store.nodes import Nodes
from app.store.protocol import Requests
from app.store.requests import RequestStore
from tests.records import record

NAMESPACE = "test"


@dataclass(frozen=True)
class Bench:
    """A store, and the owners that live."""

    store: Requests
    revive: Callable[[str], None]
    bury: Callable[[str], None]


def make_record(request_id: str = "r1") -> Record:
    sampling = Sampling(temperature=0.5, seed=7, logit_bias={3: 1.5})
    return record((1, 2, 3), 64, request_id=request_id, sampling=sampling, eos_ids=(0,), created_s=1.0)


def tokens_event(offset: int, *tokens: int, finish: FinishReason | None = None) -> Event:
    return Event(
        offset=offset,
        tokens=tokens,
        proposers=("target",) * len(tokens),
        finish_reason=finish,
        stats=Stats(rounds=offset + 1, by_drafter={"lookup": DrafterCounts(drafted=2, accepted=1)}),
    )


def redis_bench(client: redis.Redis, ttl_s: float = 60.0, active_ttl_s: float = 60.0) -> Bench:
    nodes = Nodes(client, NAMESPACE, lease_s=30.0)
    return Bench(
        RequestStore(client, NAMESPACE, ttl_s=ttl_s, active_ttl_s=active_ttl_s),
        lambda owner: _alive(nodes.beat("verify", owner, owner, progress_s=0.0, info={})),
        lambda owner: nodes.retire("verify", owner, owner),
    )


def memory_bench(ttl_s: float = 60.0, active_ttl_s: float = 60.0) -> Bench:
    living: set[str] = set()
    store = MemoryStore(ttl_s=ttl_s, active_ttl_s=active_ttl_s, is_alive=living.__contains__)
    return Bench(store, living.add, living.discard)


def _alive(beat: bool) -> None:
    assert beat
