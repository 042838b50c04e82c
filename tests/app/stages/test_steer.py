"""The tick's decision: a pure function of the load and the present policy."""

from hypothesis import given
from hypothesis import strategies as st

from app.messages import Policy
from app.stages.steer import BACKLOG, CROWD, CROWDED_DRAFT, LONGEST_DRAFT, Load, steer

IDLE = Load(active=0, running=0, fuse_waiting=0, draft_waiting=0, verifiers=1)
counts = st.integers(0, 10_000)
loads = st.builds(Load, counts, counts, counts, counts, st.integers(0, 50))
policies = st.builds(Policy, version=counts, max_draft_tokens=st.integers(0, 64))


def _settled(load: Load, policy: Policy, ticks: int = 100) -> Policy:
    for _ in range(ticks):
        policy = steer(load, policy)
    return policy


@given(loads, policies)
def test_next_policy_is_the_same_object_or_one_version_higher(load: Load, policy: Policy) -> None:
    after = steer(load, policy)
    assert after is policy or (after.version == policy.version + 1 and after != policy)
    assert 0 <= after.max_draft_tokens <= LONGEST_DRAFT


@given(loads, policies)
def test_only_the_draft_length_is_steered(load: Load, policy: Policy) -> None:
    changed = {"version", "max_draft_tokens"}
    assert steer(load, policy).model_dump(exclude=changed) == policy.model_dump(exclude=changed)


@given(loads, policies)
def test_steady_load_leads_to_a_steady_policy(load: Load, policy: Policy) -> None:
    settled = _settled(load, policy)
    assert steer(load, settled) is settled


def test_backlog_halves_drafts_down_to_none_and_they_grow_back_one_by_one() -> None:
    behind = Load(active=8, running=8, fuse_waiting=0, draft_waiting=BACKLOG + 1, verifiers=1)
    policy, lengths = Policy(), []
    for _ in range(5):
        policy = steer(behind, policy)
        lengths.append(policy.max_draft_tokens)
    assert lengths == [4, 2, 1, 0, 0]
    grown = [(policy := steer(IDLE, policy)).max_draft_tokens for _ in range(9)]
    assert grown == [1, 2, 3, 4, 5, 6, 7, 8, 8]


def test_backlog_at_fusion_counts_as_one_at_drafters() -> None:
    behind = Load(active=8, running=8, fuse_waiting=BACKLOG + 1, draft_waiting=0, verifiers=1)
    assert steer(behind, Policy()).max_draft_tokens == LONGEST_DRAFT // 2


def test_what_fits_the_mailboxes_is_no_backlog() -> None:
    full = Load(active=8, running=8, fuse_waiting=BACKLOG, draft_waiting=BACKLOG, verifiers=1)
    policy = Policy()
    assert steer(full, policy) is policy


def test_crowd_shortens_drafts_for_each_verifier_it_fills() -> None:
    crowd = Load(active=CROWD, running=CROWD, fuse_waiting=0, draft_waiting=0, verifiers=1)
    assert _settled(crowd, Policy()).max_draft_tokens == CROWDED_DRAFT
    shared = Load(active=CROWD, running=CROWD, fuse_waiting=0, draft_waiting=0, verifiers=2)
    assert _settled(shared, Policy()).max_draft_tokens == LONGEST_DRAFT


def test_no_verifier_is_no_crash() -> None:
    assert steer(Load(5, 5, 0, 0, verifiers=0), Policy()) == Policy()
