"""What `./paceline chaos` does to a deployment: one function a fault, each returns when the fault itself is over.

Whether the deployment is well again is looked at by the caller. Signals go to processes that the supervisor of that
very instance started, and to no others.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import redis

from app.local.health import Health, check
from app.local.instance import Instance
from app.messages import DraftJob, Sampling, Settle, ToDrafter, ToFuser, ToVerifier, TreeMessage
from workers.office import FUSE, SETTLE, Office, mailbox_of

ROLES = ("web", "control", "fuse", "draft", "verify", "beat", "redis")
FROZEN_S = 4.0  # longer than any lease
PAUSE_MS = 10_000
STARVED_S = 5.0
READY_S = 180.0
GARBAGE = ("", "{", "null", "[]", '{"trees": 7}', '{"adopt": ["nobody"]}', "\x00\xff", "9" * 5000)


@dataclass(frozen=True, slots=True)
class Site:
    """The deployment under test."""

    instance: Instance
    office: Office
    draw: random.Random

    def health(self) -> Health:
        """What `./paceline status --json` says."""
        return check(self.instance.name, self.instance.running(), self.office.settings.lease_s)

    def await_ready(self) -> float:
        """Until every role gets on again; seconds. Raises TimeoutError."""
        started = time.monotonic()
        while not (health := self.health()).ready:
            if time.monotonic() - started > READY_S:
                raise TimeoutError(f"not ready after {READY_S:.0f} s: {'; '.join(health.problems)}")
            time.sleep(0.05)
        return time.monotonic() - started

    def signal(self, role: str, number: signal.Signals) -> list[int]:
        """Send a signal to the role's processes; their pids."""
        pids = list(self.health().processes[role])
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids


def mailboxes_of(site: Site) -> list[str]:
    """Those of the living, and those that they share."""
    nodes = [mailbox_of(node.kind, node.name) for node in site.office.nodes.live() if node.kind in ("verify", "draft")]
    return [*nodes, FUSE, SETTLE]


Fault = Callable[[Site], None]


def _kill(role: str) -> Fault:
    def fault(site: Site) -> None:
        site.signal(role, signal.SIGKILL)

    return fault


def _freeze(role: str) -> Fault:
    def fault(site: Site) -> None:
        pids = site.signal(role, signal.SIGSTOP)
        time.sleep(FROZEN_S)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return fault


def _restart_all(site: Site) -> None:
    """Tell every process to stop, one role after another, as an upgrade would."""
    for role in ROLES:
        _await_gone(site, role, site.signal(role, signal.SIGTERM))
        site.await_ready()


def _pause_redis(site: Site) -> None:
    """Nobody gets an answer out of Redis for a while."""
    _client(site).execute_command("CLIENT", "PAUSE", PAUSE_MS, "ALL")
    time.sleep(PAUSE_MS / 1000.0)


def _starve_redis(site: Site) -> None:
    """No write finds room in Redis for a while."""
    client = _client(site)
    client.config_set("maxmemory", 1)
    try:
        time.sleep(STARVED_S)
    finally:
        client.config_set("maxmemory", 0)


def _slow_redis(site: Site) -> None:
    """Redis answers late: it is stopped for 50 of every 100 ms."""
    for _ in range(40):
        pids = site.signal("redis", signal.SIGSTOP)
        time.sleep(0.05)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)


def _cut_connections(site: Site) -> None:
    """Every connection to Redis breaks, again and again."""
    client = _client(site)
    for _ in range(5):
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.2)


def _garbage(site: Site) -> None:
    """Items that are no messages, in every mailbox."""
    for mailbox in mailboxes_of(site):
        for item in GARBAGE:
            site.office.mailboxes.post(mailbox, [item])
        site.office.ring(mailbox)


def _stale_and_foreign(site: Site) -> None:
    """Messages of every type that are valid and wrong: of other lengths, of nobody, twice, of the wrong kind."""
    trees = [_tree(name, base) for name in [*_active(site), "nobody"] for base in (1, 2, 10**6)]
    jobs = [_job(name) for name in [*_active(site), "nobody"]]
    for mailbox in mailboxes_of(site):
        for message in (ToVerifier(trees=tuple(trees), adopt=("nobody", *_active(site))), ToDrafter(jobs=tuple(jobs))):
            site.office.post(mailbox, [message, message])
        site.office.post(mailbox, [ToFuser(jobs=tuple(jobs)), Settle(request_id="nobody")])


def _lies(site: Site) -> None:
    """For a while, drafts that are wrong for every running request: in tokens, vocabulary, shape and confidence."""
    until_s = time.monotonic() + 2.0
    verifiers = [mailbox_of("verify", node.name) for node in site.office.nodes.live("verify")]
    while time.monotonic() < until_s:
        lies = []
        for name in _active(site):
            with suppress(Exception):
                length = len(site.office.requests.snapshot(name).tokens)
                prompt = len(site.office.requests.snapshot(name).record.prompt_ids)
                lies += [_tree(name, prompt + length + ahead, lie) for ahead in (0, 1, 2) for lie in range(LIES)]
        site.draw.shuffle(lies)
        for mailbox in verifiers:
            site.office.post(mailbox, [ToVerifier(trees=(lie,)) for lie in lies[:64]])
        time.sleep(0.02)


def _ring_all(site: Site) -> None:
    """Doorbells that nobody has rung."""
    for mailbox in mailboxes_of(site):
        for _ in range(10):
            site.office.ring(mailbox)


FAULTS: dict[str, Fault] = {
    **{f"kill {role}": _kill(role) for role in ROLES},
    **{f"freeze {role}": _freeze(role) for role in ROLES},
    "restart all": _restart_all,
    "pause redis": _pause_redis,
    "starve redis": _starve_redis,
    "slow redis": _slow_redis,
    "cut connections": _cut_connections,
    "garbage": _garbage,
    "stale and foreign": _stale_and_foreign,
    "lies": _lies,
    "ring all": _ring_all,
}
LIES = 6


def _tree(request_id: str, base: int, lie: int = 0) -> TreeMessage:
    """A tree that is wrong in one of LIES ways."""
    tokens: tuple[int, ...] = ((7, 7, 7), (10**9, 1, 1), (3,), (1,) * 500, (-5, 2), (5, 6, 7))[lie]
    parents = tuple(range(len(tokens))) if lie != 2 else (9,)
    sure = float("nan") if lie == 5 else 0.999
    return TreeMessage.model_construct(
        request_id=request_id,
        base=base,
        tokens=tokens,
        parents=parents,
        survival=(sure,) * len(tokens),
        proposers=(("liar",),) * len(tokens),
        models_s=-1.0,
        spared=(),
        confidence={"liar": sure},
    )


def _job(request_id: str) -> DraftJob:
    return DraftJob(
        request_id=request_id,
        verifier="verify:nobody",
        fuser=FUSE,
        base=3,
        start=0,
        tokens=(1, 2, 3),
        prompt_length=1,
        max_draft_tokens=4,
        drafters=("nobody", "lookup"),
        sampling=Sampling(seed=0),
        due_s=0.0,
    )


def _active(site: Site) -> Iterable[str]:
    """Some requests that run."""
    owners = [node.owner for node in site.office.nodes.live("verify")]
    return sorted(name for owner in owners for name in site.office.requests.owned(owner))[:16]


def _client(site: Site) -> redis.Redis:
    assert site.office.settings.redis_url is not None
    return redis.Redis.from_url(site.office.settings.redis_url)


def _await_gone(site: Site, role: str, pids: Iterable[int]) -> None:
    deadline = time.monotonic() + READY_S
    while set(pids) & set(site.health().processes[role]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"a {role} that was told to stop is still there")
        time.sleep(0.05)
