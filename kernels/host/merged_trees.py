"""Merge several drafters' guesses into one tree, the likeliest node first; `fused_trees` does it for a batch.

Below one parent the drafters' confidences are pooled as odds. With o = c / (1 - sum of that drafter's c's here), a
token gets the odds

    O = (1 + strongest o) * prod(1 + other o) ** AGREEMENT - 1

and the probability O / (1 + sum of all siblings' O); see `app.stages.fuse`.
"""

from typing import NamedTuple

import numpy as np

from kernels.jit import kernel

# Where lookup and suffix agreed, over 500 SmolLM2 generations, 0.3 to 0.55 foretold the share that was right;
# 1 foretold too much (0.85 for 0.72, 0.985 for 0.935).
AGREEMENT = 0.35
MAX_ODDS = 1e6  # of a token, however many agree
MAX_SIBLING_MASS = 0.999  # of one drafter below one parent: something else is always possible
BORROWED = -1.0  # in place of a chance: no guess of this drafter's own


class Drafts(NamedTuple):
    """D drafts of N nodes in all, for T trees."""

    tokens: np.ndarray  # (N,) int64
    parents: np.ndarray  # (N,) int64, in the node's draft
    chances: np.ndarray  # (N,) float64
    nodes: np.ndarray  # (D + 1,) int64, where each draft's nodes begin
    ranks: np.ndarray  # (D,) int64
    drafts: np.ndarray  # (T + 1,) int64, where each tree's drafts begin


@kernel
def merged_tree(
    given: Drafts,
    first: int,
    end: int,
    most: int,
    written: int,
    named: int,
    survivals: np.ndarray,
    places: np.ndarray,
    out: np.ndarray,
) -> tuple[int, int]:
    """Write a tree from node `written` and proposer `named` on; return the ends.

    `survivals`: (N,) float64; `places`: (N, 3) int64, each node's token, parent and end of its proposers in `out`, (N,)
    int64, which are indexes of the tree's drafts. A node of the union is a number, 0 the root; its children and
    confidences are linked lists, in the drafts' order.
    """
    room = given.nodes[end] - given.nodes[first] + 1
    token, child, last, sibling = _links(room), _links(room), _links(room), _links(room)
    own, last_own = _links(room), _links(room)  # of each node, its first and last confidence
    by, behind, confidence = _links(room), _links(room), np.empty(room)  # confidences: draft, next, value
    placed = _links(room)
    nodes, confidences = 1, 0
    for draft in range(first, end):
        placed[0] = 0
        base = given.nodes[draft]
        for i in range(given.nodes[draft + 1] - base):
            parent = placed[given.parents[base + i]]
            node = child[parent]
            while node >= 0 and token[node] != given.tokens[base + i]:
                node = sibling[node]
            if node < 0:
                node, nodes = nodes, nodes + 1
                token[node] = given.tokens[base + i]
                if child[parent] < 0:
                    child[parent] = node
                else:
                    sibling[last[parent]] = node
                last[parent] = node
            placed[i + 1] = node
            chance = given.chances[base + i]
            if chance <= 0.0:
                continue
            at = last_own[node]  # drafts come one after the other, so this one's is the last, if there is one
            if at >= 0 and by[at] == draft:
                confidence[at] = max(confidence[at], chance)
                continue
            at, confidences = confidences, confidences + 1
            by[at], confidence[at] = draft, chance
            if own[node] < 0:
                own[node] = at
            else:
                behind[last_own[node]] = at
            last_own[node] = at
    # Open nodes: number, parent in the tree, survival; those taken have survival 0.
    leaf, above, chance_of = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.empty(nodes)
    mass, scale = np.zeros(end - first), np.empty(end - first)
    odds = np.empty(nodes)
    leaves, index, node, survival = 0, 0, 0, 1.0
    while True:
        count, drafts = 0, 0
        for i in range(end - first):
            mass[i] = 0.0
        at_child = child[node]
        while at_child >= 0:
            at = own[at_child]
            count += at >= 0
            while at >= 0:
                drafts += mass[by[at] - first] == 0.0
                mass[by[at] - first] += confidence[at]
                at = behind[at]
            at_child = sibling[at_child]
        for i in range(end - first):
            if mass[i] > 0.0:
                scale[i] = min(1.0, MAX_SIBLING_MASS / mass[i])
        begun, total = leaves, 0.0
        at_child = child[node]
        while at_child >= 0:
            if own[at_child] >= 0:
                leaf[leaves], above[leaves] = at_child, index
                if count == 1 and drafts == 1:
                    odds[leaves] = min(MAX_SIBLING_MASS, confidence[own[at_child]])
                else:
                    odds[leaves] = pooled(own[at_child], first, by, behind, confidence, mass, scale)
                    total += odds[leaves]
                leaves += 1
            at_child = sibling[at_child]
        for i in range(begun, leaves):
            chance_of[i] = survival * (odds[i] if count == 1 and drafts == 1 else odds[i] / (1.0 + total))
        if index >= most:
            return written, named
        best = -1
        for i in range(leaves):
            if leaf[i] >= 0 and (best < 0 or chance_of[i] > chance_of[best]):
                best = i
        if best < 0:
            return written, named
        node, survival = leaf[best], chance_of[best]
        leaf[best] = -1
        index += 1
        named = write_proposers(own[node], first, by, behind, confidence, given.ranks, named, out)
        survivals[written] = survival
        places[written, 0], places[written, 1], places[written, 2] = token[node], above[best], named
        written += 1


@kernel
def _links(room: int) -> np.ndarray:
    return np.full(room, -1, np.int64)


@kernel
def pooled(
    at: int,
    first: int,
    by: np.ndarray,
    behind: np.ndarray,
    confidence: np.ndarray,
    mass: np.ndarray,
    scale: np.ndarray,
) -> float:
    product, strongest = 1.0, 0.0
    while at >= 0:
        i = by[at] - first
        factor = 1.0 + confidence[at] * scale[i] / (1.0 - mass[i] * scale[i])
        product *= factor
        strongest = max(strongest, factor)
        at = behind[at]
    return min(MAX_ODDS, strongest * (product / strongest) ** AGREEMENT - 1.0)


@kernel
def write_proposers(
    at: int,
    first: int,
    by: np.ndarray,
    behind: np.ndarray,
    confidence: np.ndarray,
    ranks: np.ndarray,
    named: int,
    out: np.ndarray,
) -> int:
    begun = named
    while at >= 0:
        i = named
        while i > begun and is_behind(out[i - 1], at, by, confidence, ranks):
            out[i] = out[i - 1]
            i -= 1
        out[i] = at
        named += 1
        at = behind[at]
    for i in range(begun, named):
        out[i] = by[out[i]] - first
    return named


@kernel
def is_behind(known: int, new: int, by: np.ndarray, confidence: np.ndarray, ranks: np.ndarray) -> bool:
    if confidence[known] != confidence[new]:
        return bool(confidence[known] < confidence[new])
    return bool(ranks[by[known]] > ranks[by[new]])
