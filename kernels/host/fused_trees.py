"""Check and merge the drafts of a batch in one call; formula in `kernels.host.merged_trees`."""

from typing import NamedTuple

import numpy as np

from kernels.host.merged_trees import BORROWED, Drafts, merged_tree
from kernels.jit import entry, kernel

FLOOR = 0.001  # confidences are taken into [FLOOR, 1 - FLOOR]: no token is certain
CEILING = 1.0 - FLOOR


class RawDrafts(NamedTuple):
    """D drafts of N nodes in all, unchecked."""

    nodes: np.ndarray  # (2, N) int64: tokens, and parents in the node's draft (0: the root, i: node i)
    confidences: np.ndarray  # (N,) float64, or BORROWED where the draft may borrow
    drafts: np.ndarray  # (3, D) int64: where nodes end, rank, whether it may borrow
    trees: np.ndarray  # (T,) int64, where each tree's drafts end


class FusedTrees(NamedTuple):
    ends: np.ndarray  # (T,) int64, where each tree's nodes end
    places: np.ndarray  # (N, 3) int64: a node's token, its parent, and where its proposers end
    proposers: np.ndarray  # (N,) int64: drafts of the tree, by number
    survivals: np.ndarray  # (N,) float64
    means: np.ndarray  # (D,) float64: of the likeliest token at each depth of a draft; nothing of those that may borrow


def room_for_trees(given: RawDrafts) -> FusedTrees:
    nodes = len(given.confidences)
    return FusedTrees(
        np.empty(len(given.trees), np.int64),
        np.empty((nodes, 3), np.int64),
        np.empty(nodes, np.int64),
        np.empty(nodes),
        np.empty(given.drafts.shape[1]),
    )


@entry
def fused_trees(given: RawDrafts, vocab_size: int, most: int, out: FusedTrees) -> bool:
    """Write the trees of up to `most` nodes; return False, with no tree, if a draft is invalid."""
    count = given.drafts.shape[1]
    chances = np.empty(len(given.confidences))
    nodes, trees = np.zeros(count + 1, np.int64), np.zeros(len(given.trees) + 1, np.int64)
    nodes[1:], trees[1:] = given.drafts[0], given.trees
    depths, best = np.empty(len(chances) + 1, np.int64), np.empty(len(chances) + 1)
    for draft in range(count):
        begun, end, may_borrow = nodes[draft], nodes[draft + 1], given.drafts[2, draft] == 1
        if not is_sound(given, begun, end, vocab_size, may_borrow):
            return False
        for i in range(begun, end):
            confidence = given.confidences[i]
            chances[i] = BORROWED if confidence == BORROWED else min(CEILING, max(FLOOR, confidence))
        if not may_borrow:
            out.means[draft] = mean_confidence(given.nodes[1, begun:end], given.confidences[begun:end], depths, best)
    drafts = Drafts(given.nodes[0], given.nodes[1], chances, nodes, given.drafts[1], trees)
    written, named = 0, 0
    for tree in range(len(given.trees)):
        first, end = trees[tree], trees[tree + 1]
        written, named = merged_tree(drafts, first, end, most, written, named, out.survivals, out.places, out.proposers)
        out.ends[tree] = written
    return True


@kernel
def is_sound(given: RawDrafts, begun: int, end: int, vocab_size: int, may_borrow: bool) -> bool:
    for i in range(begun, end):
        token, parent, confidence = given.nodes[0, i], given.nodes[1, i], given.confidences[i]
        if token < 0 or token >= vocab_size or parent < 0 or parent > i - begun:
            return False
        if not (0.0 <= confidence <= 1.0 or (may_borrow and confidence == BORROWED)):
            return False
    return True


@kernel
def mean_confidence(parents: np.ndarray, confidences: np.ndarray, depths: np.ndarray, best: np.ndarray) -> float:
    """Average the likeliest node's confidence over depths; `depths` and `best` are scratch."""
    deepest = 0
    depths[0] = 0
    for i in range(len(parents)):
        depth = depths[parents[i]] + 1
        depths[i + 1] = depth
        if depth > deepest:
            deepest, best[depth] = depth, confidences[i]
        else:
            best[depth] = max(best[depth], confidences[i])
    total = 0.0
    for depth in range(1, deepest + 1):
        total += best[depth]
    return total / deepest if deepest else 0.0
