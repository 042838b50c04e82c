"""The beat's decision: from the load, the time and the present policy to the next one. A pure function.

Composition of batches and the cut of each tree happen in the verifiers, by measured cost (`schedule`); this sets the
slower bounds they keep to. Whatever it has to remember is in the policy itself (`Policy.steering`), so a recorded
log of loads, replayed, gives the same decisions.

Each field is wanted at some value by the load, with other thresholds for leaving a value than for taking it; it changes
once that has been wanted for its HOLD, and not again before its REST has passed. Draft lengths also remember where the
drafters fell behind: beyond that they grow again only if the drafters have time to spare, or after a wait that doubles
each time it was in vain. So at a constant load at most MOST_SWITCHES ticks of any minute change something, and at most
SETTLED_SWITCHES once it has lasted for two; under any load each field changes at most 60 / REST times.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from app.policy import Policy, Steering
from app.stages.steer.load import Load, VerifierLoad

DEFAULT = Policy()
LONGEST_DRAFT = DEFAULT.max_draft_tokens
BACKLOG = 4  # items a worker's mailbox may hold without falling behind,
STALE_S = 0.5  # and so long the first of them may wait
CROWD, SPARSE = 24, 18  # sequences on one verifier from which long drafts cannot pay, and below which they can again
CROWDED_DRAFT = 4
SPARE = 0.45  # busy part of the busiest drafter up to which twice the work does not overload it
FULL = 0.95  # and from which it is overloaded
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 5.0, 120.0
REOPENED_S = 3.0  # after a pause everybody drafts a little for so long: prices and chances of before say nothing
LONG_WAITS_S = (DEFAULT.draft_wait_s, 0.5, 1.0, 2.0)
MANY_PROMPTS, FEW_PROMPTS = 4.0, 1.0  # chunks of prompts that a verifier has before it
APART, TOGETHER = 1.5, 1.2  # a step beside what it would be without its longest context
PRUNE_FROM, PRUNE_TO = 16, 8  # sequences on one verifier
PRUNE_WRONG, PRUNE_RIGHT = (
    0.7,
    0.8,
)  # part of the verified draft tokens that is right: up to here, and no more from here
MOST_SWITCHES, SETTLED_SWITCHES = 24, 6  # a minute at constant load


@dataclass(frozen=True, slots=True)
class Pace:
    """How quickly a field may change: seconds for which another value must be wanted, and for which the last stays."""

    hold_s: float
    rest_s: float


CALM = "calm"  # since when drafters are not behind
CALM_S = 0.9  # for so long before drafts grow: a tick, and what ticks are early at times
LENGTHS = Pace(0.0, 0.5)  # both draft lengths
SLOW = Pace(2.0, 5.0)
PACES = {"min_draft_tokens": LENGTHS, "verify_budget": Pace(1.0, 5.0)}


def steer(load: Load, now_s: float, policy: Policy) -> Policy:
    """The next policy; the very same object when nothing changes, not even what is remembered, else one version
    higher."""
    memory = _Memory(policy.steering, now_s)
    is_behind = _is_behind(load)
    length = _length(load, policy, memory, is_behind)
    wanted: dict[str, Any] = {
        "min_draft_tokens": _least(policy, memory, length),
        "verify_budget": _budget(load, policy),
        "apart_tokens": _apart(load.verifiers, policy.apart_tokens),
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
    """What is remembered, while it changes within one tick."""

    def __init__(self, steering: Steering, now_s: float) -> None:
        self.now_s = now_s
        self.choked, self.retry_s, self.backoff_s = steering.choked, steering.retry_s, steering.backoff_s
        self._since_s, self.changed_s = dict(steering.since_s), dict(steering.changed_s)

    def was_true(self, what: str) -> bool:
        """Was it so at the last tick?"""
        return what in self._since_s

    def since(self, what: str, is_so: bool) -> float:
        """For how many seconds it has been so."""
        if not is_so:
            self._since_s.pop(what, None)
            return 0.0
        return self.now_s - self._since_s.setdefault(what, self.now_s)

    def may_change(self, field: str, present: object, wanted: object, pace: Pace) -> bool:
        """Has the field been wanted elsewhere for long enough, and did it rest? Then it is noted as changed now."""
        wanted_s = self.since(field, wanted != present)
        rested_s = self.now_s - self.changed_s.get(field, float("-inf"))
        # A clock that was set back must not stop anything.
        if wanted == present or 0.0 <= wanted_s < pace.hold_s or 0.0 <= rested_s < pace.rest_s:
            return False
        self.since(field, False)
        self.changed_s[field] = self.now_s
        return True

    def steering(self) -> Steering:
        return Steering(
            since_s=self._since_s,
            changed_s=self.changed_s,
            choked=self.choked,
            retry_s=self.retry_s,
            backoff_s=self.backoff_s,
        )


def _is_behind(load: Load) -> bool:
    """Do drafters or fusion fall behind?"""
    boxes = [*load.of("draft"), *load.of("fuse")]
    return any(box.waiting > BACKLOG or (box.waiting and box.oldest_s > STALE_S) for box in boxes)


def _length(load: Load, policy: Policy, memory: _Memory, is_behind: bool) -> int:
    """The longest draft: halved each tick while drafters are behind, doubled when they are not any more."""
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
    """Drafters are behind. What began it is the length at which they were when they last were not."""
    if was_calm or not memory.choked:
        is_again = memory.choked and memory.now_s < memory.retry_s + 2.0 * memory.backoff_s
        memory.backoff_s = min(LONGEST_BACKOFF_S, 2.0 * memory.backoff_s) if is_again else FIRST_BACKOFF_S
        memory.choked = max(1, length)
    memory.retry_s = memory.now_s + memory.backoff_s


def _unchoked(load: Load, memory: _Memory, present: int) -> int:
    """The longest draft at which drafters are not believed to fall behind."""
    if not memory.choked or memory.now_s >= memory.retry_s + memory.backoff_s:
        return LONGEST_DRAFT
    if memory.now_s >= memory.retry_s:
        return max(present, memory.choked)
    busy = load.busiest("draft")
    if present and busy is not None and busy <= SPARE:
        return 2 * present
    return max(present, memory.choked // 2)


def _least(policy: Policy, memory: _Memory, length: int) -> int:
    """1 just after a pause: it is the price of drafting again, paid once, to learn what it is worth now."""
    if policy.max_draft_tokens == 0 and length > 0:
        return 1
    is_new = 0.0 <= memory.now_s - memory.changed_s.get("min_draft_tokens", memory.now_s) < REOPENED_S
    return policy.min_draft_tokens if is_new and length > 0 else 0


def _budget(load: Load, policy: Policy) -> int | None:
    """A draft token a sequence while prompts queue up: what drafts gain the running, the waiting pay with their first
    token, which the verifier's rule does not count."""
    chunks = [one.prompt_tokens / policy.prefill_chunk_tokens for one in load.verifiers]
    bound = FEW_PROMPTS if policy.verify_budget is not None else MANY_PROMPTS
    if max(chunks, default=0.0) < bound:
        return None
    if policy.verify_budget is not None:
        return policy.verify_budget
    return max(len(one.contexts) for one in load.verifiers) if load.verifiers else None


def _apart(verifiers: tuple[VerifierLoad, ...], present: int | None) -> int | None:
    """The contexts that stretch a step too much: a power of two, so that it stays while they grow."""
    found = [bound for one in verifiers if (bound := _stretching(one, present)) is not None]
    return min(found, default=None)


def _stretching(one: VerifierLoad, present: int | None) -> int | None:
    """Above which context the longest of this verifier's stretch its step."""
    if len(one.contexts) < 2 or not one.context_token_s:
        return None
    longest, typical = one.contexts[0], median_low(one.contexts[1:])
    bound = 1 << max(0, longest.bit_length() - 1)  # at most the longest, more than its half
    if bound <= 2 * typical:
        return None  # there is nobody to be spared
    saved_s = one.context_token_s * sum(context for context in one.contexts if context >= bound)
    stretch = one.step_s / max(1e-9, one.step_s - saved_s)
    return bound if stretch >= (TOGETHER if present is not None else APART) else None


def _wait_s(load: Load, policy: Policy) -> float:
    """The longest wait for drafts: longer where drafts take longer than the usual bound and steps do, too."""
    slowest = max((one.draft_wait_s for one in load.verifiers if one.step_s >= one.draft_wait_s), default=0.0)
    if 0.5 * policy.draft_wait_s <= 1.5 * slowest <= policy.draft_wait_s:
        return policy.draft_wait_s
    return next((bound for bound in LONG_WAITS_S if bound >= 1.5 * slowest), LONG_WAITS_S[-1])


def _drafters(load: Load, policy: Policy, is_behind: bool) -> int:
    """Fewer for each sequence where they are overloaded; all there are, as far as the settings allow, where not."""
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
    """Many rows in a step, and many of them wrong. Whether it pays is the verifier's to say, by its cost table."""
    most = max((len(one.contexts) for one in load.verifiers), default=0)
    counts = [stats for one in load.verifiers for stats in one.by_drafter.values()]
    drafted = sum(stats.drafted for stats in counts)
    bound = PRUNE_RIGHT if policy.pruning else PRUNE_WRONG
    is_right = drafted > 0 and sum(stats.accepted for stats in counts) > bound * drafted
    return most >= (PRUNE_TO if policy.pruning else PRUNE_FROM) and not is_right


def decisions(policy: Policy) -> Mapping[str, Any]:
    """What of a policy its followers see: a switch is a change of it."""
    return policy.model_dump(exclude={"version", "steering"})
