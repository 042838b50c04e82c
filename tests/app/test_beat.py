"""Test the controller's decision: a pure function of the load, the time and the present policy."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.beat import (
    BACKLOG,
    CROWD,
    CROWDED_DRAFT,
    LONGEST_DRAFT,
    MOST_SWITCHES,
    PRUNE_FROM,
    SETTLED_SWITCHES,
    STALE_S,
    decisions,
    steer,
)
from app.load import Load, MailboxLoad, VerifierLoad
from app.messages import DrafterStats
from app.policy import Policy

counts = st.integers(0, 200)
seconds = st.floats(0, 5)
contexts = st.lists(st.integers(0, 10_000), max_size=6).map(lambda found: tuple(sorted(found, reverse=True)))
stats = st.builds(DrafterStats, drafted=st.integers(50, 100), accepted=st.integers(0, 50))
verifiers = st.builds(
    VerifierLoad,
    sequences=counts,
    prompt_tokens=st.integers(0, 5000),
    contexts=contexts,
    step_s=seconds,
    draft_wait_s=seconds,
    by_drafter=st.dictionaries(st.sampled_from("ab"), stats),
)
boxes = st.builds(MailboxLoad, waiting=st.integers(0, 3 * BACKLOG), oldest_s=seconds)
loads = st.builds(
    Load,
    active=counts,
    drafters=st.integers(0, 5),
    mailboxes=st.dictionaries(st.sampled_from(["draft:a", "draft:b", "fuse", "verify:v"]), boxes),
    busy=st.dictionaries(st.sampled_from(["draft:a", "draft:b", "verify:v"]), st.floats(0, 1)),
    verifiers=st.lists(verifiers, max_size=3).map(tuple),
)
policies = st.builds(
    Policy,
    version=counts,
    max_draft_tokens=st.integers(0, 64),
    drafters_per_sequence=st.integers(1, 64),
    draft_wait_s=st.floats(0, 3),
    pruning=st.booleans(),
)


def verifier(running: int, **rest: object) -> VerifierLoad:
    return VerifierLoad.model_validate({"sequences": running, "contexts": (100,) * running, "step_s": 0.03, **rest})


def load(waiting: int = 0, busy: float = 0.1, *, at: str = "draft:a", **rest: object) -> Load:
    values = {"mailboxes": {at: MailboxLoad(waiting=waiting)}, "busy": {"draft:a": busy}, "verifiers": (verifier(4),)}
    return Load.model_validate({**values, **rest})


IDLE, BEHIND = load(), load(BACKLOG + 1, 1.0)
Feedback = Callable[[Policy], Load]


def run(feedback: Feedback | Load, ticks: int, policy: Policy | None = None, start_s: float = 1000.0) -> list[Policy]:
    """Return the policies of `ticks` ticks, one a second."""
    found, policy = [], policy or Policy()
    for i in range(ticks):
        now = feedback if isinstance(feedback, Load) else feedback(policy)
        policy = steer(now, start_s + i, policy)
        found.append(policy)
    return found


def switches(policies: list[Policy]) -> int:
    seen = [decisions(policy) for policy in policies]
    return sum(before != after for before, after in zip(seen, seen[1:], strict=False))


def lengths(policies: list[Policy]) -> list[int]:
    return [policy.max_draft_tokens for policy in policies]


@settings(max_examples=40, deadline=None)
@given(loads, st.floats(0, 2e9), policies)
def test_next_policy_is_the_same_object_or_one_version_higher(load: Load, now_s: float, policy: Policy) -> None:
    after = steer(load, now_s, policy)
    assert after is policy or (after.version == policy.version + 1 and after != policy)
    assert 0 <= after.max_draft_tokens <= LONGEST_DRAFT
    assert Policy.model_validate_json(after.model_dump_json()) == after


@settings(max_examples=40, deadline=None)
@given(loads, st.floats(0, 2e9), policies)
def test_decisions_survive_a_round_trip_through_json(load: Load, now_s: float, policy: Policy) -> None:
    again = steer(
        Load.model_validate_json(load.model_dump_json()), now_s, Policy.model_validate_json(policy.model_dump_json())
    )
    assert again == steer(load, now_s, policy)


@settings(max_examples=20, deadline=None)
@given(loads, policies)
def test_any_constant_load_leads_to_a_steady_policy(load: Load, policy: Policy) -> None:
    """What is remembered does not change either, unless a load stays behind, so nothing is written."""
    *_, before, after = run(load, 200, policy)
    assert decisions(before) == decisions(after)
    if max((box.waiting for box in load.mailboxes.values()), default=0) == 0:
        assert after is before


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(loads, st.integers(1, 9)), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_no_load_changes_a_field_more_often_than_allowed(parts: list[tuple[Load, int]], random: object) -> None:
    policies = run(lambda _: parts[random.randrange(len(parts))][0], 120)  # type: ignore[attr-defined]
    for field in (
        "draft_wait_s",
        "draft_wait_factor",
        "drafters_per_sequence",
        "pruning",
    ):
        values = [getattr(policy, field) for policy in policies]
        assert sum(a != b for a, b in zip(values, values[1:], strict=False)) <= 120 / 5, field


@pytest.mark.parametrize("at", ["draft:a", "fuse"])
def test_a_backlog_halves_drafts_to_none_and_they_return_in_five_s(at: str) -> None:
    behind = load(BACKLOG + 1, 1.0, at=at)
    policies = run(behind, 5)
    assert lengths(policies) == [4, 2, 1, 0, 0]
    assert lengths(run(IDLE, 6, policies[-1], 1005.0)) == [0, 1, 2, 4, 8, 8], "drafters that have time again"


def test_an_old_item_is_a_backlog_and_a_few_new_ones_are_none() -> None:
    assert lengths(run(load(BACKLOG), 1)) == [LONGEST_DRAFT]
    stale = load().model_copy(update={"mailboxes": {"draft:a": MailboxLoad(waiting=1, oldest_s=STALE_S + 0.1)}})
    assert lengths(run(stale, 1)) == [LONGEST_DRAFT // 2]


@pytest.mark.parametrize("capacity", [0.5, 1, 2, 3, 5])
def test_drafters_of_limited_pace_lead_to_few_switches(capacity: float) -> None:
    """Mail piles up while more is asked for than drafters manage, and shrinks otherwise."""
    backlog = 0.0

    def feedback(policy: Policy) -> Load:
        nonlocal backlog
        backlog = max(0.0, backlog + 4.0 * (policy.max_draft_tokens - capacity))
        return load(int(backlog), 1.0 if backlog else min(1.0, policy.max_draft_tokens / capacity))

    policies = run(feedback, 600)
    minutes = [switches(policies[start : start + 61]) for start in range(0, 540, 5)]
    assert max(minutes) <= MOST_SWITCHES
    assert max(minutes[24:]) <= SETTLED_SWITCHES, "after two minutes"
    assert max(lengths(policies)[300:]) <= 2 * capacity + 2


def test_all_sequences_draft_a_little_after_a_pause() -> None:
    paused = run(BEHIND, 6)[-1]
    assert paused.max_draft_tokens == 0
    least = [policy.min_draft_tokens for policy in run(IDLE, 8, paused, 1006.0)]
    assert least == [0, 1, 1, 1, 0, 0, 0, 0]


def test_many_sequences_a_verifier_shorten_drafts() -> None:
    crowd = load(verifiers=(verifier(CROWD),))
    policy = run(crowd, 5)[-1]
    assert policy.max_draft_tokens == CROWDED_DRAFT
    assert lengths(run(load(verifiers=(verifier(CROWD - 2),)), 9, policy)) == [CROWDED_DRAFT] * 9, "not yet"
    assert lengths(run(IDLE, 3, policy, 1010.0))[-1] == LONGEST_DRAFT
    two = load(verifiers=(verifier(CROWD // 2), verifier(CROWD // 2)))
    assert lengths(run(two, 3))[-1] == LONGEST_DRAFT


def test_slow_drafters_of_a_slow_target_are_waited_for() -> None:
    slow = load(verifiers=(verifier(4, step_s=2.0, draft_wait_s=0.4),))
    policy = run(slow, 4)[-1]
    assert policy.draft_wait_s == 1.0
    assert run(load(verifiers=(verifier(4, step_s=0.02, draft_wait_s=0.4),)), 8)[-1].draft_wait_s == 0.25
    assert run(IDLE, 10, policy, 1010.0)[-1].draft_wait_s == 0.25


def test_drafters_that_fall_behind_are_waited_for_less() -> None:
    policy = run(BEHIND, 4)[-1]
    assert policy.draft_wait_factor == 1.5
    assert run(IDLE, 10, policy, 1010.0)[-1].draft_wait_factor == 3.0


def test_overloaded_drafters_are_asked_one_at_a_time() -> None:
    policy = run(load(0, 1.0, drafters=4), 20)[-1]
    assert policy.drafters_per_sequence == 1
    assert run(load(0, 0.7, drafters=4), 20, policy, 1020.0)[-1].drafters_per_sequence == 1
    assert run(load(0, 0.3, drafters=4), 20, policy, 1020.0)[-1].drafters_per_sequence == 64
    assert run(load(0, 1.0, drafters=1), 20)[-1].drafters_per_sequence == 64, "there is no choice"


def test_early_exit_is_for_large_batches_of_often_wrong_drafts() -> None:
    def of(running: int, accepted: int) -> Load:
        return load(verifiers=(verifier(running, by_drafter={"a": {"drafted": 100, "accepted": accepted}}),))

    policy = run(of(PRUNE_FROM, 50), 5)[-1]
    assert policy.pruning
    assert run(of(PRUNE_FROM - 4, 75), 9, policy, 1010.0)[-1].pruning, "not until it is clear"
    assert not run(of(3, 50), 9, policy, 1010.0)[-1].pruning
    assert not run(of(PRUNE_FROM, 90), 9, policy, 1010.0)[-1].pruning
    assert not run(of(PRUNE_FROM - 1, 50), 9)[-1].pruning


def test_a_clock_set_back_stops_nothing() -> None:
    paused = run(BEHIND, 6, start_s=1e6)[-1]
    assert lengths(run(IDLE, 9, paused, 1000.0))[-1] >= 1


def test_a_load_without_verifiers_is_handled() -> None:
    assert decisions(run(Load(active=5), 3)[-1]) == decisions(Policy())
