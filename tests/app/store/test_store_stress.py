"""The store under load: processes that die with kill -9, owners that lose their leases all the time."""

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random

import redis

from app.messages import Event, FinishReason, Record, Status
from app.request import Sampling, SpeculationBounds
from app.store.nodes import Nodes
from app.store.protocol import Outcome
from app.store.requests import RequestStore
from tests.app.store import stress

ITEMS = 1200  # a poster
TOKENS = 25  # a request
REQUESTS = [f"r{number}" for number in range(6)]
OWNERS = ("v1", "v2", "v3")


def test_no_item_is_doubled_or_stuck_when_an_attendant_is_killed(redis_url: str, redis_client: redis.Redis) -> None:
    context = multiprocessing.get_context("spawn")
    posters = [context.Process(target=stress.post_all, args=(redis_url, f"p{i}", ITEMS)) for i in range(2)]
    attendants = [context.Process(target=stress.attend_all, args=(redis_url, 2)) for _ in range(2)]
    for process in posters + attendants:
        process.start()
    try:
        _wait(lambda: redis_client.llen(stress.DONE) > ITEMS // 2, redis_client)
        attendants[0].kill()
        _wait(lambda: not any(poster.is_alive() for poster in posters), redis_client)
        _wait(lambda: stress.mailboxes(redis_client).waiting(stress.MAILBOX) == 0, redis_client)
    finally:
        redis_client.set(stress.STOP, "1")
        for process in posters + attendants:
            process.join(10.0)
            process.kill()
    done = Counter(redis_client.lrange(stress.DONE, 0, -1))
    assert set(done.values()) == {1}
    assert all(poster.exitcode == 0 for poster in posters)
    # Only what the killed process held may be missing: one batch for each of its two threads.
    assert 2 * ITEMS - 2 * stress.BATCH <= len(done) <= 2 * ITEMS


def test_every_token_is_committed_once_while_owners_come_and_go(redis_client: redis.Redis) -> None:
    store = RequestStore(redis_client, "stress", ttl_s=60.0, active_ttl_s=60.0)
    nodes = Nodes(redis_client, "stress", lease_s=5.0)
    for request_id in REQUESTS:
        store.create(_record(request_id), limit=len(REQUESTS))
    read: dict[str, list[int]] = {}
    outcomes: Counter[Outcome] = Counter()
    threads = [threading.Thread(target=_read, args=(store, request_id, read)) for request_id in REQUESTS]
    threads += [threading.Thread(target=_verify, args=(store, nodes, owner, outcomes)) for owner in OWNERS]
    for thread in threads:
        thread.start()
    random, until = Random(1), time.monotonic() + 20.0
    while store.active() and time.monotonic() < until:
        owner = random.choice(OWNERS)
        nodes.retire("verify", owner, owner)
        time.sleep(0.005)
    for thread in threads:
        thread.join(10.0)
    for request_id in REQUESTS:
        found = store.snapshot(request_id)
        assert (found.status, found.tokens) == (Status.DONE, tuple(range(TOKENS)))
        assert read[request_id] == list(range(TOKENS))
    assert outcomes[Outcome.COMMITTED] == len(REQUESTS) * TOKENS
    assert outcomes[Outcome.FENCED] > 0  # else no owner ever lost a request, and nothing was tested


def _wait(is_done: Callable[[], bool], client: redis.Redis) -> None:
    """Wait until `is_done`, sweeping as any live worker would."""
    until = time.monotonic() + 20.0
    while not is_done():
        assert time.monotonic() < until, "nothing moves"
        for _ in stress.mailboxes(client).forgotten():
            client.rpush(stress.DOORBELLS, "ring")
        time.sleep(0.02)


def _verify(store: RequestStore, nodes: Nodes, owner: str, outcomes: "Counter[Outcome]") -> None:
    while store.active():
        nodes.beat("verify", owner, owner, progress_s=0.0, info={})
        for request_id, *_ in store.orphans(2):
            store.assign(request_id, owner)
        lengths = {request_id: len(store.snapshot(request_id).tokens) for request_id in store.owned(owner)}
        time.sleep(0.002)  # the forward pass, in which others may take over
        events = [(request_id, _event(length)) for request_id, length in lengths.items() if length < TOKENS]
        outcomes.update(store.commit(owner, events))


def _read(store: RequestStore, request_id: str, read: dict[str, list[int]]) -> None:
    tokens: list[int] = []
    is_over = False
    until = time.monotonic() + 20.0
    while not is_over and time.monotonic() < until:
        for event in store.events(request_id, len(tokens)):
            assert event.offset == len(tokens)
            tokens += event.tokens
            is_over = is_over or event.finish_reason is not None
        time.sleep(0.002)
    read[request_id] = tokens


def _event(length: int) -> Event:
    is_last = length == TOKENS - 1
    return Event(offset=length, tokens=(length,), finish_reason=FinishReason.STOP if is_last else None)


def _record(request_id: str) -> Record:
    return Record(
        id=request_id,
        prompt_ids=(1,),
        max_tokens=TOKENS,
        eos_ids=(0,),
        sampling=Sampling(seed=1),
        speculation=SpeculationBounds(),
        created_s=0.0,
    )
