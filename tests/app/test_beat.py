"""Test the controller's decision: a pure function of the load, the time and the present policy."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.beat import (
    BACKLOG,
    CROWD,
    CROWDED_DRAFT_TOKENS,
    DEEP,
    EXIT_FROM,
    STALE_S,
    steer,
)
from app.load import Load, MailboxLoad, VerifierLoad
from app.messages import DrafterStats
from app.policy import MOST_BATCH_TOKENS, Policy

LONGEST = Policy().max_draft_tokens
MOST_SWITCHES = 24  # a minute at constant load

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


def run(feedback: Feedback | Load, ticks: int, policy: Policy | None = None) -> list[Policy]:
    """Return the policies of `ticks` ticks."""
    found, policy = [], policy or Policy()
    for _ in range(ticks):
        policy = steer(feedback if isinstance(feedback, Load) else feedback(policy), policy)
        found.append(policy)
    return found


def switches(policies: list[Policy]) -> int:
    return sum(before.version != after.version for before, after in zip(policies, policies[1:], strict=False))


def lengths(policies: list[Policy]) -> list[int]:
    return [policy.max_draft_tokens for policy in policies]


@settings(max_examples=40, deadline=None)
@given(loads, policies)
def test_next_policy_is_the_same_object_or_one_version_higher(load: Load, policy: Policy) -> None:
    after = steer(load, policy)
    assert after is policy or (after.version == policy.version + 1 and after != policy)
    assert 0 <= after.max_draft_tokens <= LONGEST
    assert Policy.model_validate_json(after.model_dump_json()) == after


@settings(max_examples=40, deadline=None)
@given(loads, policies)
def test_decisions_survive_a_round_trip_through_json(load: Load, policy: Policy) -> None:
    again = steer(
        Load.model_validate_json(load.model_dump_json()), Policy.model_validate_json(policy.model_dump_json())
    )
    assert again == steer(load, policy)


@settings(max_examples=40, deadline=None)
@given(loads, policies)
def test_any_constant_load_leads_to_a_steady_policy(load: Load, policy: Policy) -> None:
    """What does not change is the same object, so nothing is written."""
    *_, before, after = run(load, 20, policy)
    assert after is before


@pytest.mark.parametrize("at", ["draft:a", "fuse"])
def test_a_backlog_halves_drafts_to_none_and_they_return_in_five_s(at: str) -> None:
    behind = load(BACKLOG + 1, 1.0, at=at)
    policies = run(behind, 5)
    assert lengths(policies) == [4, 2, 1, 0, 0]
    assert lengths(run(IDLE, 6, policies[-1])) == [1, 2, 4, 8, 8, 8], "drafters that have time again"


def test_an_old_item_is_a_backlog_and_a_few_new_ones_are_none() -> None:
    assert lengths(run(load(BACKLOG), 1)) == [LONGEST]
    stale = load().model_copy(update={"mailboxes": {"draft:a": MailboxLoad(waiting=1, oldest_s=STALE_S + 0.1)}})
    assert lengths(run(stale, 1)) == [LONGEST // 2]


@pytest.mark.parametrize("capacity", [0.5, 1, 2, 3, 5])
def test_drafters_of_limited_pace_lead_to_few_switches(capacity: float) -> None:
    """Mail piles up while more is asked for than drafters manage, and shrinks otherwise."""
    backlog = 0.0

    def feedback(policy: Policy) -> Load:
        nonlocal backlog
        backlog = max(0.0, backlog + 4.0 * (policy.max_draft_tokens - capacity))
        return load(int(backlog), 1.0 if backlog else min(1.0, policy.max_draft_tokens / capacity))

    policies = run(feedback, 600)
    assert max(switches(policies[start : start + 61]) for start in range(0, 540, 5)) <= MOST_SWITCHES
    assert max(lengths(policies)[300:]) <= 2 * capacity + 2


def test_many_sequences_a_verifier_shorten_drafts() -> None:
    crowd = load(verifiers=(verifier(CROWD),))
    policy = run(crowd, 5)[-1]
    assert policy.max_draft_tokens == CROWDED_DRAFT_TOKENS
    assert lengths(run(load(verifiers=(verifier(CROWD - 2),)), 9, policy)) == [CROWDED_DRAFT_TOKENS] * 9, "not yet"
    assert lengths(run(IDLE, 3, policy))[-1] == LONGEST
    two = load(verifiers=(verifier(CROWD // 2), verifier(CROWD // 2)))
    assert lengths(run(two, 3))[-1] == LONGEST


def test_slow_drafters_of_a_slow_target_are_waited_for() -> None:
    slow = load(verifiers=(verifier(4, step_s=2.0, draft_wait_s=0.4),))
    policy = run(slow, 4)[-1]
    assert policy.draft_wait_s == 1.0
    assert run(load(verifiers=(verifier(4, step_s=0.02, draft_wait_s=0.4),)), 8)[-1].draft_wait_s == 0.25
    assert run(IDLE, 10, policy)[-1].draft_wait_s == 0.25


def test_overloaded_drafters_are_asked_one_at_a_time() -> None:
    policy = run(load(0, 1.0, drafters=4), 20)[-1]
    assert policy.drafters_per_sequence == 1
    assert run(load(0, 0.7, drafters=4), 20, policy)[-1].drafters_per_sequence == 1
    assert run(load(0, 0.3, drafters=4), 20, policy)[-1].drafters_per_sequence == 64
    assert run(load(0, 1.0, drafters=1), 20)[-1].drafters_per_sequence == 64, "there is no choice"


def test_early_exit_is_for_large_batches_of_often_wrong_drafts() -> None:
    def of(running: int, accepted: int) -> Load:
        return load(verifiers=(verifier(running, by_drafter={"a": {"drafted": 100, "accepted": accepted}}),))

    policy = run(of(EXIT_FROM, 50), 5)[-1]
    assert policy.pruning
    assert run(of(EXIT_FROM - 4, 75), 9, policy)[-1].pruning, "not until it is clear"
    assert not run(of(3, 50), 9, policy)[-1].pruning
    assert not run(of(EXIT_FROM, 90), 9, policy)[-1].pruning
    assert not run(of(EXIT_FROM - 1, 50), 9)[-1].pruning


def test_a_load_without_verifiers_is_handled() -> None:
    assert run(Load(active=5), 3)[-1] == Policy()


@pytest.mark.parametrize(
    "backlog",
    [
        load(waiting_room=DEEP + 1),
        load(DEEP + 1, at="verify:v"),
        load(verifiers=(verifier(0, sequences=DEEP + 1),)),
        load(waiting_room=DEEP, verifiers=(verifier(0, sequences=DEEP + 1), verifier(1, sequences=3))),
    ],
    ids=["waiting room", "mailbox", "unread prompts", "two verifiers"],
)
def test_a_backlog_of_requests_raises_the_rows_of_a_step_until_it_is_gone(backlog: Load) -> None:
    def rows(policies: list[Policy]) -> list[int]:
        return [policy.max_batch_tokens for policy in policies]

    usual = Policy().max_batch_tokens
    policies = run(backlog, 3)
    assert rows(policies) == [MOST_BATCH_TOKENS] * 3 and 2 * usual == MOST_BATCH_TOKENS
    assert rows(run(load(waiting_room=DEEP // 2), 4, policies[-1])) == [2 * usual] * 4, "not until it is clear"
    assert rows(run(IDLE, 2, policies[-1])) == [usual, usual]
