"""Test the compiled merge of drafts against its reference, node by node and bit by bit."""

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.host.merged_trees import BORROWED, Drafts, Merged, Node, merged_tree_reference, merged_trees

CHANCES = st.one_of(st.just(BORROWED), st.sampled_from([0.001, 0.5, 0.999]), st.floats(0.001, 0.999))


@st.composite
def drafts(draw: st.DrawFn) -> list[Node]:
    size = draw(st.integers(0, 10))
    return [(draw(st.integers(0, 3)), draw(st.integers(0, i)), draw(CHANCES)) for i in range(size)]


def compiled(trees: Sequence[Sequence[Sequence[Node]]], ranks: Sequence[Sequence[int]], most: int) -> list[Merged]:
    nodes = [node for tree in trees for draft in tree for node in draft]
    tokens, parents, chances = zip(*nodes, strict=True) if nodes else ((), (), ())
    size = len(nodes)
    ends, places, out = np.empty(len(trees), np.int64), np.empty((size, 3), np.int64), np.empty(size, np.int64)
    begins = [0, *accumulate(len(draft) for tree in trees for draft in tree)]
    given = Drafts(
        np.array(tokens, np.int64),
        np.array(parents, np.int64),
        np.array(chances, np.float64),
        np.array(begins, np.int64),
        np.array([*chain.from_iterable(ranks)], np.int64),
        np.array([0, *accumulate(map(len, trees))], np.int64),
    )
    survivals = merged_trees(given, most, ends, places, out)
    found, first, named = [], 0, 0
    for end in ends.tolist():
        rows = places[first:end].tolist()
        proposers = []
        for _, _, last in rows:
            proposers.append(out[named:last].tolist())
            named = last
        tokens, parents = [row[0] for row in rows], [row[1] for row in rows]
        found.append(Merged(tokens, parents, survivals[first:end].tolist(), proposers))
        first = end
    return found


@settings(max_examples=300, deadline=None)  # the first one compiles
@given(st.lists(st.lists(drafts(), max_size=4), min_size=1, max_size=4), st.integers(0, 63), st.randoms())
def test_every_tree_of_a_batch_is_the_references(trees: list[list[list[Node]]], most: int, dice: object) -> None:
    ranks = [dice.sample(range(len(tree)), len(tree)) for tree in trees]
    expected = [merged_tree_reference(tree, own, most) for tree, own in zip(trees, ranks, strict=True)]
    assert compiled(trees, ranks, most) == expected


def test_drafters_that_agree_and_disagree() -> None:
    trees = [[[(7, 0, 0.5), (8, 1, 0.5)], [(7, 0, 0.8), (9, 1, 0.4)]]]
    (tree,) = compiled(trees, [[1, 0]], 8)
    assert tree == merged_tree_reference(trees[0], [1, 0], 8)
    assert (tree.tokens, tree.parents, tree.proposers) == ([7, 8, 9], [0, 1, 1], [[1, 0], [0], [1]])
    assert tree.survival[0] > 0.8 and sum(tree.survival[1:]) < tree.survival[0]


def test_equally_sure_drafts_stand_by_rank() -> None:
    for ranks in ([0, 1], [1, 0]):
        (tree,) = compiled([[[(7, 0, 0.5)], [(7, 0, 0.5)]]], [ranks], 8)
        assert tree.proposers == [[ranks.index(0), ranks.index(1)]]
