import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.messages import TARGET, Draft
from app.stages.fuse import MAX_NODES, fuse
from app.state import Tree
from tests.records import draft_job
from tests.steps import lines_run

VOCAB = 10
JOB = draft_job("r", (), (), start=5, max_draft_tokens=16)


def draft(name: str, tokens: Any, parents: Any = None, confidences: Any = None, **rest: Any) -> Draft:
    values = {
        "request_id": "r",
        "base": 5,
        "drafter": name,
        "tokens": tuple(tokens),
        "parents": tuple(range(len(tokens))) if parents is None else parents,
        "confidences": (0.5,) * len(tokens) if confidences is None else confidences,
    }
    return Draft(**{**values, **rest})


def fused(*drafts: Draft, max_nodes: int = MAX_NODES) -> Tree:
    return fuse([(JOB, drafts)], VOCAB, max_nodes)[0]


def check_contract(tree: Tree, max_nodes: int = MAX_NODES) -> None:
    assert len(tree) <= max_nodes
    assert len(tree.tokens) == len(tree.parents) == len(tree.survival) == len(tree.proposers)
    assert tree.survival == sorted(tree.survival, reverse=True)
    assert all(0.0 <= s < 1.0 for s in tree.survival)
    assert all(0 <= token < VOCAB for token in tree.tokens)
    assert all(0 <= parent <= i for i, parent in enumerate(tree.parents))
    assert len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree), "siblings are distinct"
    mass = dict.fromkeys(range(len(tree) + 1), 0.0)
    for parent, survival in zip(tree.parents, tree.survival, strict=True):
        mass[parent] += survival
    for node, total in mass.items():
        assert total <= (tree.survival[node - 1] if node else 1.0) + 1e-9
    assert all(names and len(set(names)) == len(names) for names in tree.proposers)


@settings(deadline=None)  # the first one compiles
@given(st.lists(st.tuples(st.integers(0, VOCAB - 1), st.floats(0.0, 1.0)), max_size=20), st.integers(0, 20))
def test_a_lone_chain_is_fused_as_it_is_beside_a_silent_drafter(nodes, max_nodes):
    chain = draft("a", [token for token, _ in nodes], confidences=tuple(value for _, value in nodes))
    alone = fused(chain, max_nodes=max_nodes)
    check_contract(alone, max_nodes)
    assert alone == fused(chain, draft("b", ()), max_nodes=max_nodes)


weird_ints = st.integers(-2, VOCAB + 1) | st.sampled_from([10**30, True, None, "7", 1.5])
weird_floats = st.floats() | st.sampled_from([None, "0.5", 1, 0, True, 10**400])
weird_drafts = st.lists(
    st.builds(
        lambda **fields: Draft(**fields),
        request_id=st.sampled_from(["r", "r", "r", "other", None]),
        base=st.sampled_from([5, 5, 5, 4, 6, None]),
        drafter=st.sampled_from(["a", "b", "c", TARGET, "", None]),
        tokens=st.lists(weird_ints, max_size=20).map(tuple) | st.none(),
        parents=st.lists(st.integers(-1, 20) | st.none(), max_size=20).map(tuple),
        confidences=st.lists(weird_floats, max_size=20).map(tuple),
        borrowed=st.lists(weird_ints, max_size=20).map(tuple) | st.none(),
    ),
    max_size=6,
)


@st.composite
def sound_draft(draw: st.DrawFn, name: str) -> Draft:
    size = draw(st.integers(0, 12))
    return draft(
        name,
        draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)),
        tuple(draw(st.integers(0, i)) for i in range(size)),
        tuple(draw(st.lists(st.floats(0, 1), min_size=size, max_size=size))),
        borrowed=tuple(draw(st.sets(st.integers(1, 12), max_size=3))),
    )


@given(weird_drafts, st.integers(0, 70))
def test_any_garbage_becomes_a_tree(drafts: list[Draft], max_nodes: int) -> None:
    check_contract(fused(*drafts, max_nodes=max_nodes), min(max_nodes, MAX_NODES))


@settings(max_examples=200)
@given(sound_draft("a"), sound_draft("b"), sound_draft("c"), st.integers(0, 12))
def test_sound_drafts_become_a_tree(a: Draft, b: Draft, c: Draft, max_nodes: int) -> None:
    check_contract(fused(a, b, c, max_nodes=max_nodes), max_nodes)


@given(sound_draft("a"), sound_draft("b"), st.integers(0, 12))
def test_fewer_nodes_are_the_first_of_more(a: Draft, b: Draft, max_nodes: int) -> None:
    assert fused(a, b, max_nodes=max_nodes) == fused(a, b).cut(max_nodes)


def test_a_lone_draft_keeps_its_confidences() -> None:
    tree = fused(draft("a", [1, 2, 3], (0, 0, 1), (0.6, 0.3, 0.5)))
    assert tree.tokens == [1, 2, 3]
    assert tree.parents == [0, 0, 1]
    assert tree.survival == pytest.approx([0.6, 0.3, 0.3])


def test_agreement_raises_and_disagreement_lowers() -> None:
    agreed = fused(draft("a", [1], confidences=(0.6,)), draft("b", [1], confidences=(0.5,)))
    assert 0.6 < agreed.survival[0] < 1 - 0.4 * 0.5  # more than the strongest, less than independent witnesses
    assert agreed.proposers == [("a", "b")]
    split = fused(draft("a", [1], confidences=(0.6,)), draft("b", [2], confidences=(0.5,)))
    assert split.survival == pytest.approx([0.6 * 0.5 / 0.7, 0.5 * 0.4 / 0.7])


def test_shared_beginnings_merge() -> None:
    tree = fused(draft("a", [1, 2, 3]), draft("b", [1, 2, 4]))
    assert sorted(tree.tokens) == [1, 2, 3, 4]
    assert tree.parents == [0, 1, 2, 2]


@pytest.mark.parametrize(
    "bad",
    [
        draft("a", [1, 2, VOCAB, 3]),
        draft("a", [1, 2, -1, 3]),
        draft("a", [1, 2, 3, 4], confidences=(0.5, 0.5, math.nan, 0.5)),
        draft("a", [1, 2, 3, 4], confidences=(0.5, 0.5, math.inf, 0.5)),
        draft("a", [1, 2, 3, 4], parents=(0, 1, 3, 2)),
        draft("a", [1, 2, 3, 4], parents=(0, 1, -1, 2)),
        draft("a", [1, 2, 3, 4], confidences=(0.5, 0.5)),
    ],
)
def test_a_draft_is_cut_at_its_first_bad_node(bad: Draft) -> None:
    assert fused(bad).tokens == [1, 2]


@pytest.mark.parametrize(
    "rest",
    [{"base": 4}, {"base": 6}, {"request_id": "other"}, {"drafter": TARGET}, {"drafter": ""}],
)
def test_a_draft_for_something_else_is_dropped(rest: dict[str, Any]) -> None:
    assert len(fused(draft("a", [1, 2], **rest))) == 0


@given(st.lists(weird_drafts | st.lists(sound_draft("a") | sound_draft("b"), max_size=3), min_size=1, max_size=4))
def test_a_tree_is_the_same_whatever_else_is_in_its_batch(rounds: list[list[Draft]]) -> None:
    together = fuse([(JOB, drafts) for drafts in rounds], VOCAB)
    for drafts, tree in zip(rounds, together, strict=True):
        alone = fused(*drafts)
        assert replace(tree, confidence={}) == replace(alone, confidence={})


def test_a_tree_has_the_mean_confidences_of_its_sound_drafts() -> None:
    branching = draft("a", [1, 2, 3], (0, 0, 1), (0.25, 0.5, 0.75))
    guest = draft("b", [1, 3], (0, 1), (0.0, 0.9), borrowed=(1,))
    assert fused(branching, guest, draft("c", [4])).confidence == {"a": 0.625, "c": 0.5}


def test_confidences_out_of_range_are_clamped() -> None:
    assert fused(draft("a", [1, 2], confidences=(0.5, -1.0))).tokens == [1, 2]
    tree = fused(draft("a", [1, 2], confidences=(7.0, -3.0)))
    assert 0.99 < tree.survival[0] < 1.0
    assert 0.0 < tree.survival[1] < 0.01


def test_many_that_agree_and_huge_numbers_do_no_harm() -> None:
    tree = fused(*[draft(f"d{i}", [1], confidences=(10**400,)) for i in range(500)])
    check_contract(tree)
    assert tree.tokens == [1]


def test_a_draft_too_long_is_cut() -> None:
    assert len(fused(draft("a", [1] * 60))) == JOB.max_draft_tokens
    (grown,) = fuse([(replace(JOB, max_nodes=32), [draft("a", [1] * 60)])], VOCAB)
    assert len(grown) == 32, "a tree may have more nodes than it is deep"


def test_a_repeated_draft_counts_once() -> None:
    once = fused(draft("a", [1, 2]))
    assert fused(draft("a", [1, 2]), draft("a", [1, 2])) == once
    assert fused(draft("a", [1, 1], parents=(0, 0))).survival == pytest.approx([0.5])


def test_fusing_takes_few_steps() -> None:
    drafts = [draft(name, [i % VOCAB for i in range(k, k + 8)]) for k, name in enumerate("abcd")]
    assert lines_run(lambda: fused(*drafts)) < 2_500, "less than a millisecond"


def test_a_borrowed_node_is_its_owners_alone() -> None:
    owner = draft("a", [1, 2])
    guest = draft("b", [1, 3], (0, 1), (0.0, 0.9), borrowed=(1,))
    tree = fused(owner, guest)
    assert dict(zip(tree.tokens, tree.proposers, strict=True)) == {1: ("a",), 2: ("a",), 3: ("b",)}
    assert tree.survival[0] == pytest.approx(0.5), "who borrows has no opinion"


def test_a_node_borrowed_from_no_drafter_is_dropped() -> None:
    tree = fused(draft("b", [1, 3, 4], (0, 1, 0), (0.0, 0.9, 0.3), borrowed=(1,)))
    assert (tree.tokens, tree.proposers) == ([4], [("b",)])


def test_borrowed_nodes_take_no_room_from_ones_own() -> None:
    count = JOB.max_draft_tokens
    owner = draft("a", [1] * count)
    guest = draft("b", [1] * count + [2] * count, tuple(range(count)) * 2, borrowed=tuple(range(1, count + 1)))
    tree = fused(owner, guest)
    assert sum(names == ("b",) for names in tree.proposers) == count
    assert sum(names == ("a",) for names in tree.proposers) == count
