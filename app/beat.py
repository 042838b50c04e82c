"""Decide the next policy from the load, the time and the present policy: a pure function.

Verifiers compose batches and cut trees themselves, by measured cost (`app.scheduler`); the
policy sets the slower bounds they keep to. All that the controller has to remember is in the policy
(`Policy.steering`), so a recorded log of loads, replayed, gives the same decisions.

The load asks for some value of each field, with other thresholds for leaving a value than for
taking it. A field changes once another value has been wanted for its `hold_s`, and not again before
its `rest_s` has passed. Draft lengths also remember where the drafters fell behind: beyond that
they grow again only if the drafters have time to spare, or after a wait that doubles each time it
was in vain. So at a constant load at most MOST_SWITCHES ticks of any minute change something, and
at most SETTLED_SWITCHES once it has lasted for two minutes; under any load each field changes at
most 60 / `rest_s` times a minute.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.load import Load
from app.policy import Policy, Steering

DEFAULT = Policy()
LONGEST_DRAFT = DEFAULT.max_draft_tokens
BACKLOG = 4  # items a worker's mailbox may hold without falling behind,
STALE_S = 0.5  # and seconds that the first of them may wait
CROWD, SPARSE = 24, 18  # sequences on one verifier from which long drafts cannot pay, and below which they can again
CROWDED_DRAFT = 4
SPARE = 0.45  # busy part of the busiest drafter up to which twice the work does not overload it
FULL = 0.95  # and from which it is overloaded
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 5.0, 120.0
REOPENED_S = 3.0  # after a pause, when all draft a little: costs and chances from before are stale
LONG_WAITS_S = (DEFAULT.draft_wait_s, 0.5, 1.0, 2.0)
PRUNE_FROM, PRUNE_TO = 16, 8  # sequences on one verifier
# Part of the verified draft tokens that is right: rows leave passes early up to the first, and no
# more above the second.
PRUNE_WRONG, PRUNE_RIGHT = 0.7, 0.8
MOST_SWITCHES, SETTLED_SWITCHES = 24, 6  # a minute at constant load


@dataclass(frozen=True, slots=True)
class Pace:
    """Bound how quickly a field changes.

    Another value must be wanted for `hold_s` seconds; each value stays for `rest_s` seconds.
    """

    hold_s: float
    rest_s: float


CALM = "calm"  # key of the time since which drafters are not behind
CALM_S = 0.9  # seconds before drafts grow: a tick, less what a tick may come early
LENGTHS = Pace(0.0, 0.5)  # both draft lengths
SLOW = Pace(2.0, 5.0)
PACES = {"min_draft_tokens": LENGTHS}


def steer(load: Load, now_s: float, policy: Policy) -> Policy:
    """Return the next policy, one version higher, or the very same object when nothing changes.

    `now_s` is the wall clock. A change of what is remembered alone also counts as a change.
    """
    memory = _Memory(policy.steering, now_s)
    is_behind = _is_behind(load)
    length = _length(load, policy, memory, is_behind)
    wanted: dict[str, Any] = {
        "min_draft_tokens": _least(policy, memory, length),
        "draft_wait_s": _wait_s(load, policy),
        "draft_wait_factor": 1.5 if is_behind else DEFAULT.draft_wait_factor,
        "drafters_per_sequence": _drafters(load, policy, is_behind),
        "pruning": _prunes(load, policy),
    }
    changed = {"max_draft_tokens": length} if length != policy.max_draft_tokens else {}
    for field, value in wanted.items():
        if memory.may_change(field, getattr(policy, field), value, PACES.get(field, SLOW)):
            changed[field] = value
    steering = memory.steering()
    if not changed and steering == policy.steering:
        return policy
    return policy.model_copy(update={"version": policy.version + 1, **changed, "steering": steering})


class _Memory:
    """Hold what the policy remembers, while it changes within one tick."""

    def __init__(self, steering: Steering, now_s: float) -> None:
        self.now_s = now_s
        self.choked, self.retry_s, self.backoff_s = steering.choked, steering.retry_s, steering.backoff_s
        self._since_s, self.changed_s = dict(steering.since_s), dict(steering.changed_s)

    def was_true(self, what: str) -> bool:
        """Tell whether this condition held at the last tick."""
        return what in self._since_s

    def since(self, what: str, is_so: bool) -> float:
        """Return for how many seconds this condition has held, and remember since when."""
        if not is_so:
            self._since_s.pop(what, None)
            return 0.0
        return self.now_s - self._since_s.setdefault(what, self.now_s)

    def may_change(self, field: str, present: object, wanted: object, pace: Pace) -> bool:
        """Tell whether a field may change now, by its pace; if so, record that it does."""
        wanted_s = self.since(field, wanted != present)
        rested_s = self.now_s - self.changed_s.get(field, float("-inf"))
        # A clock that was set back must not block changes.
        if wanted == present or 0.0 <= wanted_s < pace.hold_s or 0.0 <= rested_s < pace.rest_s:
            return False
        self.since(field, False)
        self.changed_s[field] = self.now_s
        return True

    def steering(self) -> Steering:
        """Return what the next policy remembers."""
        return Steering(
            since_s=self._since_s,
            changed_s=self.changed_s,
            choked=self.choked,
            retry_s=self.retry_s,
            backoff_s=self.backoff_s,
        )


def _is_behind(load: Load) -> bool:
    """Tell whether drafters or fusion fall behind."""
    boxes = [*load.of("draft"), *load.of("fuse")]
    return any(box.waiting > BACKLOG or (box.waiting and box.oldest_s > STALE_S) for box in boxes)


def _length(load: Load, policy: Policy, memory: _Memory, is_behind: bool) -> int:
    """Return the longest draft: halved each tick while drafters are behind, then doubled again."""
    present, crowd = policy.max_draft_tokens, load.running / max(1, len(load.verifiers))
    was_calm = memory.was_true(CALM)
    calm_s = memory.since(CALM, not is_behind)
    is_crowded = crowd >= CROWD or (present <= CROWDED_DRAFT and crowd >= SPARSE)
    ceiling = CROWDED_DRAFT if is_crowded else LONGEST_DRAFT
    if is_behind:
        _note_choke(memory, present, was_calm)
        wanted = present // 2
    else:
        grown = min(max(1, 2 * present), _unchoked(load, memory, present))
        wanted = grown if calm_s < 0.0 or calm_s >= CALM_S else present
    wanted = min(ceiling, wanted)
    return wanted if memory.may_change("max_draft_tokens", present, wanted, LENGTHS) else present


def _note_choke(memory: _Memory, length: int, was_calm: bool) -> None:
    """Record that drafters fell behind at this length, and when to try it again.

    The length that caused it is the one at which they were when they last were not behind.
    """
    if was_calm or not memory.choked:
        is_again = memory.choked and memory.now_s < memory.retry_s + 2.0 * memory.backoff_s
        memory.backoff_s = min(LONGEST_BACKOFF_S, 2.0 * memory.backoff_s) if is_again else FIRST_BACKOFF_S
        memory.choked = max(1, length)
    memory.retry_s = memory.now_s + memory.backoff_s


def _unchoked(load: Load, memory: _Memory, present: int) -> int:
    """Return the longest draft at which drafters are not expected to fall behind."""
    if not memory.choked or memory.now_s >= memory.retry_s + memory.backoff_s:
        return LONGEST_DRAFT
    if memory.now_s >= memory.retry_s:
        return max(present, memory.choked)
    busy = load.busiest("draft")
    if present and busy is not None and busy <= SPARE:
        return 2 * present
    return max(present, memory.choked // 2)


def _least(policy: Policy, memory: _Memory, length: int) -> int:
    """Return the shortest draft: 1 just after a pause, to learn its worth anew; else 0."""
    if policy.max_draft_tokens == 0 and length > 0:
        return 1
    is_new = 0.0 <= memory.now_s - memory.changed_s.get("min_draft_tokens", memory.now_s) < REOPENED_S
    return policy.min_draft_tokens if is_new and length > 0 else 0


def _wait_s(load: Load, policy: Policy) -> float:
    """Return the longest wait for drafts: more where drafts and steps both exceed the usual."""
    slowest = max((one.draft_wait_s for one in load.verifiers if one.step_s >= one.draft_wait_s), default=0.0)
    if 0.5 * policy.draft_wait_s <= 1.5 * slowest <= policy.draft_wait_s:
        return policy.draft_wait_s
    return next((bound for bound in LONG_WAITS_S if bound >= 1.5 * slowest), LONG_WAITS_S[-1])


def _drafters(load: Load, policy: Policy, is_behind: bool) -> int:
    """Return the drafters a sequence: fewer where they are overloaded, else all allowed ones."""
    present = min(policy.drafters_per_sequence, max(1, load.drafters))
    busy = load.busiest("draft")
    if load.drafters < 2 or busy is None:
        return DEFAULT.drafters_per_sequence
    if is_behind or busy >= FULL:
        return max(1, present // 2)
    if busy > SPARE:
        return policy.drafters_per_sequence
    return 2 * present if 2 * present < load.drafters else DEFAULT.drafters_per_sequence


def _prunes(load: Load, policy: Policy) -> bool:
    """Tell whether rows may leave passes early: many rows a step, many of them wrong.

    Each verifier decides by its step costs whether it pays.
    """
    most = max((len(one.contexts) for one in load.verifiers), default=0)
    counts = [stats for one in load.verifiers for stats in one.by_drafter.values()]
    drafted = sum(stats.drafted for stats in counts)
    bound = PRUNE_RIGHT if policy.pruning else PRUNE_WRONG
    is_right = drafted > 0 and sum(stats.accepted for stats in counts) > bound * drafted
    return most >= (PRUNE_TO if policy.pruning else PRUNE_FROM) and not is_right


def decisions(policy: Policy) -> Mapping[str, Any]:
    """Return the fields of a policy that verifiers see; a switch is a change of one of them."""
    return policy.model_dump(exclude={"version", "steering"})
