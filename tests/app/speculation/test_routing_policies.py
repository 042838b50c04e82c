"""Test the pure rules of routing: the verifier, the nodes, and the drafters of a round."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.speculation.routing_policies import (
    Option,
    added_tokens,
    cosine,
    guesses,
    hosts,
    is_short,
    learned,
    misses,
    outcomes,
    serving,
    verifier,
)
from app.state import Tree
from app.store.protocol import Node

HASH = "abc"


def node(name: str, kind: str = "draft", **info) -> Node:
    return Node(kind, name, "owner", 0.0, info)


def drafting(name: str, *names: str, waiting: int = 0, tokenizer: str = HASH) -> Node:
    return node(name, drafters=list(names), waiting=waiting, tokenizer=tokenizer)


def test_the_verifier_with_the_fewest_requests_is_chosen():
    live = [Node("verify", name, f"{name}'s", 0.0, {}) for name in ("v1", "v3", "v2")]
    assert verifier(live, {"v1's": 3, "v3's": 1, "v2's": 1}).name == "v2"


def test_a_verifier_that_holds_nothing_yet_is_idle():
    live = [Node("verify", name, f"{name}'s", 0.0, {}) for name in ("v1", "v2")]
    assert verifier(live, {"v1's": 1}).name == "v2"


def test_without_a_live_verifier_none_is_chosen():
    assert verifier([], {}) is None


def test_every_drafter_has_its_nodes_the_least_busy_first():
    live = [drafting("d1", "small", "tiny", waiting=4), drafting("d2", "small"), drafting("d3", "other", waiting=9)]
    assert hosts(live, HASH) == {
        "small": ("draft:d2", "draft:d1"),
        "tiny": ("draft:d1",),
        "other": ("draft:d3",),
    }


def test_a_drafter_with_another_tokenizer_is_not_asked():
    live = [drafting("d1", "small", tokenizer="xyz"), node("d2", drafters=["dumb"]), drafting("d3", "small", waiting=5)]
    assert hosts(live, HASH) == {"small": ("draft:d3",)}


def test_a_node_that_reports_no_drafters_has_none():
    assert hosts([node("d1", tokenizer=HASH)], HASH) == {}


def test_one_drafter_on_two_nodes_is_listed_once_each():
    live = [drafting("d1", "small", "small"), drafting("d2", "small")]
    assert hosts(live, HASH) == {"small": ("draft:d1", "draft:d2")}


chances = st.floats(0.0, 1.0)
options = st.lists(
    st.builds(
        Option,
        drafter=st.uuids().map(str),
        acceptance=chances,
        doubt=st.floats(0.0, 0.5),
        price=st.floats(0.0, 20.0),
        is_here=st.booleans(),
        match=chances,
        rounds=st.integers(0, 9),
    ),
    min_size=1,
    max_size=6,
)


@given(options, st.integers(1, 16), st.integers(1, 8), st.booleans())
def test_at_least_one_drafter_is_asked_none_twice_and_within_the_bound(listed, depth, most, is_exploring):
    for chosen in (
        learned(listed, depth, most, is_exploring=is_exploring),
        cosine(listed, most, is_exploring=is_exploring),
    ):
        assert 1 <= len(chosen) <= most
        assert len(set(chosen)) == len(chosen)
        assert set(chosen) <= {option.drafter for option in listed}


@given(options, st.integers(1, 16), st.integers(1, 8), st.floats(0.0, 1.0))
def test_exploiting_takes_the_best_net_gain_and_adds_only_what_gains(listed, depth, most, least_gain):
    by_name = {option.drafter: option for option in listed}
    first, *others = [by_name[name] for name in learned(listed, depth, most, is_exploring=False, least_gain=least_gain)]
    net = [option.tokens(depth) - option.price for option in listed]
    assert first.tokens(depth) - first.price == max(net)
    missed = misses(first.acceptance, depth)
    for option in others:
        assert not option.is_here
        assert added_tokens(option.acceptance, missed) - option.price >= least_gain
        missed = [a * b for a, b in zip(missed, misses(option.acceptance, depth), strict=True)]


@given(chances, st.integers(1, 64))
def test_the_tokens_expected_of_a_draft_are_a_geometric_sum(acceptance, depth):
    p = min(0.98, acceptance)
    assert Option("a", acceptance).tokens(depth) == pytest.approx(sum(p**i for i in range(1, depth + 1)))


def test_doubt_counts_while_exploring_only():
    listed = [Option("known", 0.6, 0.01), Option("new", 0.5, 0.3)]
    assert learned(listed, 4, 1, is_exploring=True) == ["new"]
    assert learned(listed, 4, 1, is_exploring=False) == ["known"]


def test_an_expert_of_a_low_mean_is_asked_too_until_it_is_known_to_be_worse_here():
    def chosen(doubt: float, *, is_exploring: bool) -> list[str]:
        listed = [Option("mixture", 0.35, 0.05), Option("expert", 0.1, doubt)]
        return learned(listed, 4, 2, is_exploring=is_exploring, least_gain=0.12)

    assert chosen(0.12, is_exploring=True) == ["mixture", "expert"]
    assert chosen(0.03, is_exploring=True) == ["mixture"]
    assert chosen(0.12, is_exploring=False) == ["mixture"]


def test_only_a_much_better_drafter_is_worth_waiting_for():
    def chosen(loaded: float) -> list[str]:
        return learned([Option("loaded", loaded, price=1.0), Option("idle", 0.5)], 8, 1, is_exploring=False)

    assert (chosen(0.55), chosen(0.9)) == (["idle"], ["loaded"])


def test_a_nearly_sure_drafter_leaves_nothing_for_a_second():
    assert learned([Option("sure", 0.98), Option("good", 0.8)], 1, 2, is_exploring=False) == ["sure"]
    assert learned([Option("sure", 0.98), Option("poor", 0.3)], 8, 2, is_exploring=False) == ["sure"]


@given(st.lists(chances, min_size=1, max_size=3), chances, st.integers(1, 6), st.integers())
@settings(max_examples=15, deadline=None)
def test_one_more_drafter_adds_what_the_best_of_independent_drafts_gains(others, own, depth, seed):
    """By drawing: a draft of each, right for a geometric number of tokens."""
    random = Random(seed)

    def drawn(p: float) -> int:
        return next((n for n in range(depth) if random.random() >= min(0.98, p)), depth)

    gained, rounds = 0, 4000
    for _ in range(rounds):
        gained += max(0, drawn(own) - max(drawn(p) for p in others))
    missed = [1.0] * depth
    for p in others:
        missed = [a * b for a, b in zip(missed, misses(p, depth), strict=True)]
    assert added_tokens(own, missed) == pytest.approx(gained / rounds, abs=5 * depth / rounds**0.5 / 2)


def test_cosine_explores_the_least_tried_and_exploits_the_best():
    listed = [Option("best", 0.5, match=0.9, rounds=9), Option("new", 0.5, match=0.1), Option("old", 0.5, rounds=5)]
    assert cosine(listed, 1, is_exploring=True) == ["new"]
    assert cosine(listed, 2, is_exploring=True) == ["new", "best"]
    assert cosine(listed, 1, is_exploring=False) == ["best"]
    assert cosine(listed, 2, is_exploring=False) == ["best", "old"]


def test_nothing_accepted_yet_is_short():
    assert is_short(None) and is_short(1.5) and not is_short(3.0)


#        root -> 1 (a, b) -> 2 (a) -> 3 (a)
#             -> 9 (c)    -> 8 (b)
TREE = Tree([1, 9, 2, 8, 3], [0, 0, 1, 1, 3], [0.9, 0.1, 0.8, 0.2, 0.7], [("a", "b"), ("c",), ("a",), ("b",), ("a",)])


@pytest.mark.parametrize(
    ("committed", "found", "length"),
    [
        ([1, 2, 3, 4], {"a": (3, 3), "b": (1, 2), "c": (0, 1), "silent": (0, 1)}, 3),
        ([1, 2], {"a": (2, 2), "b": (1, 2), "c": (0, 1), "silent": (0, 1)}, 2),
        ([1, 7], {"a": (1, 2), "b": (1, 2), "c": (0, 1), "silent": (0, 1)}, 1),
        ([9, 1], {"a": (0, 1), "b": (0, 1), "c": (1, 1), "silent": (0, 1)}, 1),
        ([5], {"a": (0, 1), "b": (0, 1), "c": (0, 1), "silent": (0, 1)}, 0),
        ([], {"a": (0, 0), "b": (0, 0), "c": (0, 0), "silent": (0, 0)}, 0),
    ],
)
def test_a_drafter_is_right_while_it_proposes_the_right_path(committed, found, length):
    assert outcomes(TREE, committed, ("a", "b", "c", "silent")) == (found, length)


def test_a_drafter_is_rated_by_its_own_likeliest_token_at_each_position():
    found = [guesses(TREE, name, 9) for name in ("a", "b", "c", "silent")]
    assert found == [{0: 1, 1: 2, 2: 3}, {0: 1, 1: 8}, {0: 9}, {}]
    assert guesses(TREE, "a", 2) == {0: 1, 1: 2}


def test_a_drafter_is_rated_behind_tokens_of_others_that_it_went_on_from():
    #        root -> 1 (a) -> 2 (a, b) -> 3 (b)
    #             -> 9 (b)           -> 7 (b)
    comb = Tree(
        [1, 9, 2, 3, 7], [0, 0, 1, 3, 3], [0.9, 0.4, 0.8, 0.7, 0.1], [("a",), ("b",), ("a", "b"), ("b",), ("b",)]
    )
    assert guesses(comb, "b", 9) == {0: 9, 1: 2, 2: 3}
    assert guesses(comb, "a", 9) == {0: 1, 1: 2}


def test_a_verifier_serves_requests_of_its_tokenizer_and_its_target() -> None:
    def node(name: str, **info: str) -> Node:
        return Node("verify", name, f"owner of {name}", 0.0, dict(info))

    live = [
        node("a", tokenizer="t", target="1"),
        node("b", tokenizer="t", target="2"),
        node("c", tokenizer="u"),
        node("old"),
    ]
    assert [one.name for one in serving(live, "t")] == ["a", "b", "old"]
    assert [one.name for one in serving(live, "t", "2")] == ["b"]
    assert serving(live, "t", "3") == []
