"""Decide the next policy from the depth of the queues and the present policy: a pure function.

Each value keeps for a range of loads, so that a constant load ends in a constant policy.
"""

from app.load import Load
from app.policy import MOST_BATCH_TOKENS, Policy

DEFAULT = Policy()
BACKLOG = 4  # items in a drafter's or fuser's mailbox beyond which it is behind,
STALE_S = 0.5  # and seconds that the first of them may wait
SPARE, FULL = 0.45, 0.95  # busy part of the busiest drafter: twice the work does not overload it; it is overloaded
CROWD, SPARSE = 24, 18  # sequences on one verifier from which long drafts cannot pay, and below which they can again
CROWDED_DRAFT_TOKENS = 4
DEEP, SHALLOW = 8, 2  # requests without a first token, a verifier: more is a backlog, fewer is none
LONG_WAITS_S = (DEFAULT.draft_wait_s, 0.5, 1.0, 2.0)
EXIT_FROM, EXIT_TO = 16, 8  # sequences on one verifier from which rows leave passes early, and below which they stay
EXIT_WRONG, EXIT_RIGHT = 0.7, 0.8  # part of the verified draft tokens that is right, at most, and from which they stay


def steer(load: Load, policy: Policy) -> Policy:
    """Return the next policy, or the same object when nothing changes."""
    is_behind = any(
        box.waiting > BACKLOG or (box.waiting and box.oldest_s > STALE_S)
        for box in (*load.of("draft"), *load.of("fuse"))
    )
    wanted = {
        "max_draft_tokens": _draft_tokens(load, policy, is_behind),
        "drafters_per_sequence": _drafters(load, policy, is_behind),
        "max_batch_tokens": _batch_tokens(load, policy),
        "draft_wait_s": _wait_s(load, policy),
        "pruning": _exits_early(load, policy),
    }
    if all(getattr(policy, name) == value for name, value in wanted.items()):
        return policy
    return policy.model_copy(update={"version": policy.version + 1, **wanted})


def _draft_tokens(load: Load, policy: Policy, is_behind: bool) -> int:
    present, crowd = policy.max_draft_tokens, load.running / max(1, len(load.verifiers))
    is_crowded = crowd >= CROWD or (present <= CROWDED_DRAFT_TOKENS and crowd >= SPARSE)
    longest = CROWDED_DRAFT_TOKENS if is_crowded else DEFAULT.max_draft_tokens
    if is_behind:
        return min(longest, present // 2)
    busy = load.busiest("draft")
    return min(longest, max(1, 2 * present) if busy is None or busy <= SPARE else present)


def _drafters(load: Load, policy: Policy, is_behind: bool) -> int:
    present = min(policy.drafters_per_sequence, max(1, load.drafters))
    busy = load.busiest("draft")
    if load.drafters < 2:
        return DEFAULT.drafters_per_sequence
    if is_behind or (busy is not None and busy >= FULL):
        return max(1, present // 2)
    if busy is not None and busy > SPARE:
        return policy.drafters_per_sequence
    return 2 * present if 2 * present < load.drafters else DEFAULT.drafters_per_sequence


def _batch_tokens(load: Load, policy: Policy) -> int:
    """Return more rows in a backlog, so that prompts get a larger part of a step (`app.scheduler.prefill`)."""
    unread = sum(one.sequences - len(one.contexts) for one in load.verifiers)
    mail = sum(box.waiting for box in load.of("verify"))
    depth = (load.waiting_room + mail + unread) / max(1, len(load.verifiers))
    if depth > DEEP:
        return min(MOST_BATCH_TOKENS, 2 * policy.max_batch_tokens)
    return max(DEFAULT.max_batch_tokens, policy.max_batch_tokens // 2) if depth < SHALLOW else policy.max_batch_tokens


def _wait_s(load: Load, policy: Policy) -> float:
    slowest = max((one.draft_wait_s for one in load.verifiers if one.step_s >= one.draft_wait_s), default=0.0)
    if 0.5 * policy.draft_wait_s <= 1.5 * slowest <= policy.draft_wait_s:
        return policy.draft_wait_s
    return next((bound for bound in LONG_WAITS_S if bound >= 1.5 * slowest), LONG_WAITS_S[-1])


def _exits_early(load: Load, policy: Policy) -> bool:
    most = max((len(one.contexts) for one in load.verifiers), default=0)
    counts = [stats for one in load.verifiers for stats in one.by_drafter.values()]
    drafted = sum(stats.drafted for stats in counts)
    bound = EXIT_RIGHT if policy.pruning else EXIT_WRONG
    is_right = drafted > 0 and sum(stats.accepted for stats in counts) > bound * drafted
    return most >= (EXIT_TO if policy.pruning else EXIT_FROM) and not is_right
