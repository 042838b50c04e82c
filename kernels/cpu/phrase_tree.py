"""Grow a tree of guesses from n-gram tables and a request's own text, the likeliest node first.

    p_n(t) = (count_n(t) + DOUBT[n] p_(n-1)(t)) / (total_n + DOUBT[n]),   p_0 = 0

after the last tokens of a node's path, where a sighting in the request's own text counts for OWN ones
in the tables. Tokens that stand in that text are HERE times as likely, the sum kept. A node's survival
is the product of the chances on its path. Retrieval (REST, arXiv:2311.08252) as an interpolated n-gram
model with a cache (Kuhn and De Mori, 1990); how the numbers were found is in docs/decisions/0009.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from kernels.cpu.jit import entry, kernel
from kernels.cpu.phrase_tables import DOUBT, LONGEST, MULTIPLIER, PhraseTables

OWN = 10.0
HERE = 2.0
MAX_CHILDREN = 4  # of a node
CONSIDERED = 8  # the most frequent next tokens of an n-gram in the tables
LITTLE = 0.02  # weight left below which shorter n-grams are not looked up
MAX_PLACES = 32  # of a token in the own text: the latest
MIN_SURVIVAL = 0.03  # below it a guess is not worth a row of any verifier
MAX_NODES = 64

_SIZES, _WEIGHTS = np.array([*DOUBT]), np.array([*DOUBT.values()])
_MOST = len(DOUBT) * CONSIDERED + MAX_PLACES  # next tokens after one context
_MULTIPLIER, _ONE, _WORD = np.uint64(MULTIPLIER), np.uint64(1), np.int64(63)


class OwnText(NamedTuple):
    """A request's own text: tokens, and which of them are its own rather than what goes before."""

    tokens: np.ndarray  # (capacity,) int32
    seen: np.ndarray  # (V // 64 + 1,) uint64: a bit for each token of the vocabulary, set by the kernel
    start: int  # tokens before it lend context only
    read: int  # up to here `seen` knows the tokens
    end: int


class Guesses(NamedTuple):
    """Room for the nodes of a tree: each a token, its parent (0: the root, i: node i) and its chance after that."""

    tokens: np.ndarray  # (MAX_NODES,) int64
    parents: np.ndarray  # (MAX_NODES,) int64
    chances: np.ndarray  # (MAX_NODES,) float64


def room() -> Guesses:
    """Return empty guesses."""
    return Guesses(np.empty(MAX_NODES, np.int64), np.empty(MAX_NODES, np.int64), np.empty(MAX_NODES))


def hashes(context: Sequence[int]) -> dict[int, int]:
    """Hash the last 1, 2, 3, ... tokens: h = (h + token + 1) * MULTIPLIER, from the last token backwards."""
    found, value = {}, 0
    for size, token in enumerate(reversed(context), start=1):
        value = (value + token + 1) * MULTIPLIER & (2**64 - 1)
        found[size] = value
    return found


def phrase_tree_reference(
    tables: PhraseTables, text: Sequence[int], start: int, most: int
) -> list[tuple[int, int, float]]:
    """Return up to `most` nodes (token, parent, chance) after a text; the specification.

    Tokens of the text before `start` lend context only.
    """
    own = set(text[start:])

    def chances(context: list[int]) -> list[tuple[int, float]]:
        places = [i for i in range(start, len(text) - 1) if text[i] == context[-1]][-MAX_PLACES:]
        found: dict[int, float] = {}
        left = 1.0
        for at, (size, doubt) in enumerate(DOUBT.items()):
            if size > len(context):
                continue
            low, end = tables.buckets[at, 0], tables.buckets[at, -1]
            key = np.uint64(hashes(context)[size] >> tables.bits)
            i = low + tables.grams[low:end].searchsorted(key)
            known = i < end and tables.grams[i] == key
            rows = range(tables.first[i], min(tables.first[i + 1], tables.first[i] + CONSIDERED)) if known else ()
            here = [
                text[j + 1] for j in places if j + 1 >= size and list(text[j + 1 - size : j + 1]) == context[-size:]
            ]
            whole = (tables.totals[i] if known else 0) + OWN * len(here)
            if not whole:
                continue
            one = left / (whole + doubt)
            for token, count in ((int(tables.tokens[row]), tables.counts[row]) for row in rows):
                found[token] = found.get(token, 0.0) + one * count
            for token in here:
                found[token] = found.get(token, 0.0) + one * OWN
            left *= doubt / (whole + doubt)
            if left < LITTLE:
                break
        raised = {token: chance * HERE if token in own else chance for token, chance in found.items()}
        scale = sum(found.values()) / sum(raised.values()) if found else 0.0
        best = sorted(raised.items(), key=lambda one: one[1], reverse=True)[:MAX_CHILDREN]
        return [(token, float(scale * chance)) for token, chance in best]

    nodes: list[tuple[int, int, float]] = []
    leaves: list[tuple[float, int, int, float, list[int]]] = []  # -survival, parent, token, chance, its context

    def open_leaves(survival: float, node: int, context: list[int]) -> None:
        for token, chance in chances(context):
            if survival * chance >= MIN_SURVIVAL:
                heappush(leaves, (-survival * chance, node, token, chance, [*context[1 - LONGEST :], token]))

    open_leaves(1.0, 0, list(text[-LONGEST:]))
    while leaves and len(nodes) < most:
        negative, parent, token, chance, context = heappop(leaves)
        nodes.append((token, parent, chance))
        if len(nodes) < most:
            open_leaves(-negative, len(nodes), context)
    return nodes


@entry
def phrase_tree(tables: PhraseTables, own: OwnText, most: int, out: Guesses) -> int:
    """Write up to `most` nodes, MAX_NODES at most, and return their number; marks the text's new tokens as seen."""
    for i in range(own.read, own.end):
        token = np.int64(own.tokens[i])
        if 0 <= token < 64 * len(own.seen):
            own.seen[token >> 6] |= _ONE << np.uint64(token & _WORD)
    most = min(most, MAX_NODES)
    # A row for each leaf: those of a node are opened together, in a node's turn.
    tokens, parents = np.empty((MAX_NODES * MAX_CHILDREN), np.int64), np.empty((MAX_NODES * MAX_CHILDREN), np.int64)
    chances, survivals = np.empty(MAX_NODES * MAX_CHILDREN), np.empty(MAX_NODES * MAX_CHILDREN)
    paths = np.empty((MAX_NODES + 1, LONGEST), np.int64)  # the last tokens up to a node, at the row's end
    known = np.zeros(MAX_NODES + 1, np.int64)  # of them
    known[0] = min(LONGEST, own.end)
    for i in range(known[0]):
        paths[0, LONGEST - 1 - i] = own.tokens[own.end - 1 - i]
    found, weights = np.empty(_MOST, np.int64), np.empty(_MOST)
    nodes, leaves, survival = 0, 0, 1.0
    while True:
        count = next_tokens(tables, own, paths[nodes], known[nodes], found, weights)
        for i in range(count):
            if survival * weights[i] >= MIN_SURVIVAL:
                tokens[leaves], parents[leaves] = found[i], nodes
                chances[leaves], survivals[leaves] = weights[i], survival * weights[i]
                leaves += 1
        best = -1
        for i in range(leaves):
            if survivals[i] > 0.0 and (best < 0 or is_before(survivals, parents, tokens, i, best)):
                best = i
        if best < 0:
            return nodes
        survival, survivals[best] = survivals[best], 0.0
        parent = parents[best]
        out.tokens[nodes], out.parents[nodes], out.chances[nodes] = tokens[best], parent, chances[best]
        nodes += 1
        if nodes >= most:
            return nodes
        known[nodes] = min(LONGEST, known[parent] + 1)
        paths[nodes, : LONGEST - 1] = paths[parent, 1:]
        paths[nodes, LONGEST - 1] = tokens[best]


@kernel
def is_before(survivals: np.ndarray, parents: np.ndarray, tokens: np.ndarray, i: int, j: int) -> bool:
    """Return whether leaf i is likelier than leaf j, or as likely and of an earlier parent, or a lower token."""
    if survivals[i] != survivals[j]:
        return bool(survivals[i] > survivals[j])
    if parents[i] != parents[j]:
        return bool(parents[i] < parents[j])
    return bool(tokens[i] < tokens[j])


@kernel
def next_tokens(
    tables: PhraseTables, own: OwnText, path: np.ndarray, known: int, found: np.ndarray, chances: np.ndarray
) -> int:
    """Write the likeliest tokens after a path with their chances, likeliest first, and return their number.

    path: (LONGEST,) int64, its last `known` tokens count; found: (_MOST,) int64, chances: (_MOST,) float64.
    """
    places, lengths = np.empty(MAX_PLACES, np.int64), np.empty(MAX_PLACES, np.int64)
    sightings = own_sightings(own, path, known, places, lengths)
    hashed = np.empty(LONGEST + 1, np.uint64)
    value = np.uint64(0)
    for size in range(1, known + 1):
        value = (value + np.uint64(path[LONGEST - size]) + _ONE) * _MULTIPLIER
        hashed[size] = value
    count, left = 0, 1.0
    for at in range(len(_SIZES)):
        size, doubt = _SIZES[at], _WEIGHTS[at]
        if size > known:
            continue
        gram = find(tables, at, hashed[size] >> np.uint64(tables.bits))
        here = 0
        for i in range(sightings):
            here += lengths[i] >= size
        total = 0 if gram < 0 else tables.totals[gram]
        whole = total + OWN * here
        if whole == 0.0:
            continue
        one = left / (whole + doubt)
        if gram >= 0:
            for row in range(tables.first[gram], min(tables.first[gram + 1], tables.first[gram] + CONSIDERED)):
                count = add_chance(found, chances, count, tables.tokens[row], one * tables.counts[row])
        for i in range(sightings):
            if lengths[i] >= size:
                count = add_chance(found, chances, count, own.tokens[places[i]], one * OWN)
        left *= doubt / (whole + doubt)
        if left < LITTLE:
            break
    return likeliest(own, found, chances, count)


@kernel
def own_sightings(own: OwnText, path: np.ndarray, known: int, places: np.ndarray, lengths: np.ndarray) -> int:
    """Write where the own text goes on after the path's last token, and how many of its last tokens match there.

    places, lengths: (MAX_PLACES,) int64, of the latest places, the earliest first; returns their number.
    """
    if known == 0:
        return 0
    count, last = 0, path[LONGEST - 1]
    for i in range(own.end - 2, own.start - 1, -1):
        if own.tokens[i] == last:
            length = 1
            while length < min(known, i + 1) and own.tokens[i - length] == path[LONGEST - 1 - length]:
                length += 1
            places[count], lengths[count] = i + 1, length
            count += 1
            if count == MAX_PLACES:
                break
    for i in range(count // 2):
        j = count - 1 - i
        places[i], places[j] = places[j], places[i]
        lengths[i], lengths[j] = lengths[j], lengths[i]
    return count


@kernel
def find(tables: PhraseTables, at: int, key: np.uint64) -> int:
    """Return the place of a gram of the size `at`; -1 for an unknown one."""
    bucket = np.int64(key >> np.uint64(tables.shift))
    low, end = tables.buckets[at, bucket], tables.buckets[at, bucket + 1]
    high = end
    while low < high:
        middle = (low + high) // 2
        if tables.grams[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low if low < end and tables.grams[low] == key else -1


@kernel
def add_chance(found: np.ndarray, chances: np.ndarray, count: int, token: int, chance: float) -> int:
    """Add to a token's chance; return the number of tokens found."""
    for i in range(count):
        if found[i] == token:
            chances[i] += chance
            return count
    found[count], chances[count] = token, chance
    return count + 1


@kernel
def likeliest(own: OwnText, found: np.ndarray, chances: np.ndarray, count: int) -> int:
    """Raise tokens of the own text, keep the sum, and bring the likeliest few to the front; return their number."""
    whole, raised = 0.0, 0.0
    for i in range(count):
        whole += chances[i]
        token = found[i]
        if 0 <= token < 64 * len(own.seen) and own.seen[token >> 6] >> np.uint64(token & _WORD) & _ONE:
            chances[i] *= HERE
        raised += chances[i]
    most = min(count, MAX_CHILDREN)
    for i in range(most):
        best = i
        for j in range(i + 1, count):
            if chances[j] > chances[best]:
                best = j
        token, chance = found[best], chances[best]
        for j in range(best, i, -1):  # the others keep their order: of equals the first found is first
            found[j], chances[j] = found[j - 1], chances[j - 1]
        found[i], chances[i] = token, chance
    for i in range(most):
        chances[i] *= whole / raised
    return most
