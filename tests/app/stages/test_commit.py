"""Test the event that commits a verdict: its end, its proposers and its statistics."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.messages import TARGET, DrafterCounts, Event, FinishReason, Rejected, Stats
from app.stages.commit import conclude, event_of
from app.state import Sequence, Tree, Verdict
from tests import fakes

EOS = 9
CHAIN = Tree([1, 2, 3, 4], [0, 1, 2, 3], [0.9, 0.8, 0.7, 0.6], [("a", "b"), ("b",), ("a",), ("c",)])


def state(max_tokens: int = 100, generated: int = 0, stats: Stats | None = None) -> Sequence:
    found = fakes.sequence([5, 6, 7], max_tokens=max_tokens, eos_ids=(EOS, 8))
    found.kv.tokens += [0] * generated
    found.stats = stats or Stats()
    return found


def event_from(sequence: Sequence, tree: Tree, verdict: Verdict, now_s: float) -> Event:
    """Return the event of a verdict, as its verifier commits it."""
    return event_of(conclude(sequence, verdict), sequence.stats, tree, verdict, now_s)


def test_accepted_tokens_name_their_drafter_and_the_bonus_the_target():
    event = event_from(state(generated=2), CHAIN, Verdict([1, 2], [1, 2, 6]), now_s=50.0)
    assert (event.offset, event.tokens, event.proposers) == (2, (1, 2, 6), ("a", "b", TARGET))
    assert event.finish_reason is None


def test_statistics_count_all_verified_nodes_for_each_proposer():
    old = Stats(
        rounds=3, drafted=10, accepted=4, by_drafter={"a": DrafterCounts(drafted=7, accepted=1)}, first_token_s=1.0
    )
    stats = event_from(state(stats=old), CHAIN, Verdict([1, 2], [1, 2, 6]), now_s=50.0).stats
    assert (stats.rounds, stats.drafted, stats.accepted) == (4, 14, 6)
    assert stats.by_drafter == {
        "a": DrafterCounts(drafted=9, accepted=2),
        "b": DrafterCounts(drafted=2, accepted=2),
        "c": DrafterCounts(drafted=1, accepted=0),
    }
    assert (stats.first_token_s, stats.last_token_s) == (1.0, 50.0)
    assert old.by_drafter == {"a": DrafterCounts(drafted=7, accepted=1)}, "the old statistics stay as they were"


def test_the_first_commit_sets_the_first_tokens_time():
    assert event_from(state(), Tree(), Verdict([], [4]), now_s=50.0).stats.first_token_s == 50.0


@pytest.mark.parametrize(
    ("tokens", "room", "committed", "reason"),
    [
        ([1, 2, 3], 9, (1, 2, 3), None),
        ([1, 2, EOS], 9, (1, 2, EOS), FinishReason.STOP),
        ([1, EOS, 3], 9, (1, EOS), FinishReason.STOP),
        ([8, EOS, 3], 9, (8,), FinishReason.STOP),
        ([1, 2, EOS], 3, (1, 2, EOS), FinishReason.STOP),
        ([1, 2, EOS], 2, (1, 2), FinishReason.LENGTH),
        ([1, 2, 3], 3, (1, 2, 3), FinishReason.LENGTH),
        ([1, 2, 3], 1, (1,), FinishReason.LENGTH),
    ],
)
def test_an_event_ends_at_an_end_token_or_at_max_tokens(tokens, room, committed, reason):
    event = event_from(state(10, 10 - room), CHAIN, Verdict([1, 2], tokens), now_s=0.0)
    assert (event.tokens, event.finish_reason) == (committed, reason)
    assert len(event.proposers) == len(committed)
    assert event.stats.accepted == min(2, len(committed))


# a right chain 1, 2; beside its first node a wrong branch 5, 6 that forks into 7; behind it a wrong 3, 4
BY = [("a",), ("b", "a"), *[("c",)] * 5]
TREE = Tree([1, 5, 2, 6, 3, 7, 4], [0, 0, 1, 2, 3, 2, 5], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3], BY)


@pytest.mark.parametrize(
    ("tokens", "room", "rejected"),
    [
        ([1, 2, 8], 9, [Rejected(place=0, drafter="b", tokens=(5, 6)), Rejected(place=2, drafter="c", tokens=(3, 4))]),
        ([1, 2, 8], 2, [Rejected(place=0, drafter="b", tokens=(5, 6))]),
        ([1, 2, 3], 9, [Rejected(place=0, drafter="b", tokens=(5, 6))]),  # 3 left the pass early: it was not wrong
    ],
)
def test_wrong_branches_are_named_on_request(tokens, room, rejected):
    conclusion = conclude(state(10, 10 - room), Verdict([1, 3], tokens))
    event = event_of(conclusion, Stats(), TREE, Verdict([1, 3], tokens), now_s=0.0, with_rejected=True)
    assert sorted(event.rejected, key=lambda one: one.place) == rejected
    assert event_of(conclusion, Stats(), TREE, Verdict([1, 3], tokens), now_s=0.0).rejected == ()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 4), st.integers(1, 8), st.lists(st.sampled_from([1, 2, 3, 8, EOS]), min_size=5, max_size=5))
def test_an_event_is_never_longer_than_its_room_nor_past_an_end(depth, room, tokens):
    event = event_from(state(8, 8 - room), CHAIN, Verdict(CHAIN.parents[1 : depth + 1], tokens[: depth + 1]), now_s=0.0)
    assert 1 <= len(event.tokens) <= min(room, depth + 1)
    assert not {8, EOS} & set(event.tokens[:-1])
    ends = event.tokens[-1] in (8, EOS)
    assert (event.finish_reason is FinishReason.STOP) == ends
    assert (event.finish_reason is FinishReason.LENGTH) == (len(event.tokens) == room and not ends)
    assert sum(d.drafted for d in event.stats.by_drafter.values()) == sum(map(len, CHAIN.proposers))
    assert event.stats.accepted <= event.stats.drafted == len(CHAIN)
