"""Grow a draft tree from n-gram tables and a request's own text, the likeliest node first.

    p_n(t) = (count_n(t) + DOUBT[n] p_(n-1)(t)) / (total_n + DOUBT[n]),   p_0 = 0

A sighting in the own text counts for OWN ones in the tables; its tokens are HERE times as likely, the sum kept.
Survival is the product of the chances on a path. Retrieval (REST, arXiv:2311.08252) as an interpolated n-gram model
with a cache (Kuhn and De Mori, 1990); docs/decisions/0009.
"""

from typing import NamedTuple

import numpy as np

from kernels.host.next_tokens import (
    MAX_CHILDREN,
    Found,
    OwnText,
    next_tokens,
    room_for_next,
)
from kernels.host.phrase_tables import (
    LONGEST,
    PhraseTables,
)
from kernels.jit import entry, kernel

MIN_SURVIVAL = 0.03  # below it a guess is not worth a row of any verifier
MAX_NODES = 64

_ONE, _WORD = np.uint64(1), np.int64(63)


class OwnTexts(NamedTuple):
    """Requests' own texts, a row each; the kernel appends new tokens."""

    tokens: np.ndarray  # (R, capacity) int32
    seen: np.ndarray  # (R, V // 64 + 1) uint64: a bit for each token of the vocabulary
    spans: np.ndarray  # (R, 2) int64: how many of the tokens lend context only, and how many there are


class Guesses(NamedTuple):
    nodes: np.ndarray  # (N, 2) int64: a token, and its parent in the tree (0: the root, i: node i)
    chances: np.ndarray  # (N,) float64, each after its parent
    ends: np.ndarray  # (B,) int64, where each tree's nodes end


class Leaves(NamedTuple):
    nodes: np.ndarray  # (MAX_NODES * MAX_CHILDREN, 2) int64: a token, and its parent
    chances: np.ndarray  # (MAX_NODES * MAX_CHILDREN, 2): of it after its parent, and its survival: 0 once it is taken
    paths: np.ndarray  # (MAX_NODES + 1, LONGEST) int64: the last tokens up to a node, at the row's end
    known: np.ndarray  # (MAX_NODES + 1,) int64, of them


def room(trees: int, nodes: int) -> Guesses:
    return Guesses(np.empty((nodes, 2), np.int64), np.empty(nodes), np.empty(trees, np.int64))


@entry
def phrase_trees(tables: PhraseTables, texts: OwnTexts, asked: np.ndarray, fresh: np.ndarray, out: Guesses) -> None:
    """Append new tokens to requests' own texts, and write the tree of each.

    asked: (B, 3) int64, a text's row, its number of new tokens, and the most nodes, up to MAX_NODES; fresh: int32, the
    new tokens, text after text.
    """
    room = MAX_NODES * MAX_CHILDREN
    leaves = Leaves(
        np.empty((room, 2), np.int64),
        np.empty((room, 2)),
        np.empty((MAX_NODES + 1, LONGEST), np.int64),
        np.empty(MAX_NODES + 1, np.int64),
    )
    found = room_for_next()
    read, written = 0, 0
    for i in range(len(asked)):
        row, count = asked[i, 0], asked[i, 1]
        append(texts, row, fresh[read : read + count])
        read += count
        own = OwnText(texts.tokens[row], texts.seen[row], texts.spans[row, 0], texts.spans[row, 1])
        written = phrase_tree(tables, own, asked[i, 2], written, out, leaves, found)
        out.ends[i] = written


@kernel
def append(texts: OwnTexts, row: int, fresh: np.ndarray) -> None:
    """Append tokens to a text, and mark as seen those that more than lend context."""
    start, end = texts.spans[row, 0], texts.spans[row, 1]
    seen = texts.seen[row]
    for i in range(len(fresh)):
        token = np.int64(fresh[i])
        texts.tokens[row, end + i] = token
        if end + i >= start and 0 <= token < 64 * len(seen):
            seen[token >> 6] |= _ONE << np.uint64(token & _WORD)
    texts.spans[row, 1] = end + len(fresh)


@kernel
def phrase_tree(
    tables: PhraseTables, own: OwnText, most: int, begun: int, out: Guesses, leaves: Leaves, found: Found
) -> int:
    open_nodes, chances, paths, known = leaves.nodes, leaves.chances, leaves.paths, leaves.known
    known[0] = min(LONGEST, own.end)
    for i in range(known[0]):
        paths[0, LONGEST - 1 - i] = own.tokens[own.end - 1 - i]
    nodes, opened, survival = 0, 0, 1.0
    while True:
        count = next_tokens(tables, own, paths[nodes], known[nodes], found)
        for i in range(count):
            chance = found.chances[i]
            if survival * chance >= MIN_SURVIVAL:
                open_nodes[opened, 0], open_nodes[opened, 1] = found.tokens[i], nodes
                chances[opened, 0], chances[opened, 1] = chance, survival * chance
                opened += 1
        best = -1
        for i in range(opened):
            if chances[i, 1] > 0.0 and (best < 0 or is_before(open_nodes, chances, i, best)):
                best = i
        if best < 0:
            return begun + nodes
        survival, chances[best, 1] = chances[best, 1], 0.0
        token, parent = open_nodes[best, 0], open_nodes[best, 1]
        out.nodes[begun + nodes, 0], out.nodes[begun + nodes, 1] = token, parent
        out.chances[begun + nodes] = chances[best, 0]
        nodes += 1
        if nodes >= most:
            return begun + nodes
        known[nodes] = min(LONGEST, known[parent] + 1)
        paths[nodes, : LONGEST - 1] = paths[parent, 1:]
        paths[nodes, LONGEST - 1] = token


@kernel
def is_before(nodes: np.ndarray, chances: np.ndarray, i: int, j: int) -> bool:
    if chances[i, 1] != chances[j, 1]:
        return bool(chances[i, 1] > chances[j, 1])
    if nodes[i, 1] != nodes[j, 1]:
        return bool(nodes[i, 1] < nodes[j, 1])
    return bool(nodes[i, 0] < nodes[j, 0])
