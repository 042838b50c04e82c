"""Test the compiled merge of drafts against its reference, node by node and bit by bit."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate, chain
from math import prod
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.host.fused_trees import RawDrafts, fused_trees, room_for_trees
from kernels.host.merged_trees import AGREEMENT, BORROWED, MAX_ODDS, MAX_SIBLING_MASS

VOCAB = 10

CHANCES = st.one_of(st.just(BORROWED), st.sampled_from([0.001, 0.5, 0.999]), st.floats(0.001, 0.999))


Node = tuple[int, int, float]  # token, parent (0: the root, i: the draft's node i), chance or BORROWED


class Merged(NamedTuple):
    """A tree: nodes by falling survival, parents first; the drafts behind each, the most confident first."""

    tokens: list[int]
    parents: list[int]  # 0: the root, i: node i
    survival: list[float]
    proposers: list[list[int]]  # indexes of the tree's drafts


class _Node:
    """A token in the merged tree; `confidence` is each draft's own in it, given its parent."""

    __slots__ = ("children", "confidence")

    def __init__(self) -> None:
        self.confidence: dict[int, float] = {}
        self.children: dict[int, _Node] = {}


def merged_tree_reference(drafts: Sequence[Sequence[Node]], ranks: Sequence[int], most: int) -> Merged:
    """Return the `most` likeliest nodes of the union of drafts; the specification.

    A token that a draft repeats below the same parent counts once, at its best. `ranks`: of equally
    confident drafts the one of the lower rank comes first.
    """
    root = _Node()
    for draft, nodes in enumerate(drafts):
        placed = [root]
        for token, parent, chance in nodes:
            node = placed[parent].children.setdefault(token, _Node())
            if chance > node.confidence.get(draft, 0.0):
                node.confidence[draft] = chance
            placed.append(node)
    found = Merged([], [], [], [])
    order = 0  # of opening: keeps ties deterministic and nodes uncompared
    leaves: list[tuple[float, int, int, int, _Node]] = []  # -survival, order of opening, parent, token, node
    node, index, survival = root, 0, 1.0
    while True:
        for token, child, probability in _probabilities(node):
            heappush(leaves, (-survival * probability, order, index, token, child))
            order += 1
        if not leaves or index >= most:
            return found
        negative, _, parent, token, node = heappop(leaves)
        index, survival = index + 1, -negative
        found.tokens.append(token)
        found.parents.append(parent)
        found.survival.append(survival)
        own = node.confidence
        found.proposers.append(sorted(own, key=lambda draft: (-own[draft], ranks[draft])))


def _probabilities(parent: _Node) -> Iterator[tuple[int, _Node, float]]:
    """Yield each child, and its probability given the parent; what all borrowed and none guessed is no guess."""
    children = [(token, child) for token, child in parent.children.items() if child.confidence]
    mass: dict[int, float] = {}
    for _, child in children:
        for draft, own in child.confidence.items():
            mass[draft] = mass.get(draft, 0.0) + own
    if len(children) == len(mass) == 1:
        yield *children[0], min(MAX_SIBLING_MASS, *mass.values())
        return
    scale = {draft: min(1.0, MAX_SIBLING_MASS / total) for draft, total in mass.items()}
    odds: list[float] = []
    for _, child in children:
        factors = [1.0 + c * scale[d] / (1.0 - mass[d] * scale[d]) for d, c in child.confidence.items()]
        strongest = max(factors)
        odds.append(min(MAX_ODDS, strongest * (prod(factors) / strongest) ** AGREEMENT - 1.0))
    whole = 0.0
    for own in odds:  # `sum` rounds otherwise from Python 3.12 on
        whole += own
    for (token, child), own in zip(children, odds, strict=True):
        yield token, child, own / (1.0 + whole)


@st.composite
def drafts(draw: st.DrawFn) -> list[Node]:
    size = draw(st.integers(0, 10))
    return [(draw(st.integers(0, 3)), draw(st.integers(0, i)), draw(CHANCES)) for i in range(size)]


def compiled(trees: Sequence[Sequence[Sequence[Node]]], ranks: Sequence[Sequence[int]], most: int) -> list[Merged]:
    nodes = [node for tree in trees for draft in tree for node in draft]
    tokens, parents, chances = zip(*nodes, strict=True) if nodes else ((), (), ())
    order = [*chain.from_iterable(ranks)]
    given = RawDrafts(
        np.array([tokens, parents], np.int64),
        np.array(chances, np.float64),
        np.array([[*accumulate(len(draft) for tree in trees for draft in tree)], order, [1] * len(order)], np.int64),
        np.array([*accumulate(map(len, trees))], np.int64),
    )
    fused = room_for_trees(given)
    assert fused_trees(given, VOCAB, most, fused)
    ends, places, out, survivals, _ = fused
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
