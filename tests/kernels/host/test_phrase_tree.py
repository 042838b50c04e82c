"""Test the compiled tree of phrases against its reference, node by node."""

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.host.next_tokens import HERE, LITTLE, MAX_CHILDREN, MAX_PLACES, OWN
from kernels.host.phrase_tables import (
    DOUBT,
    KEPT_SHIFT,
    LONGEST,
    MOST_SEEN,
    MULTIPLIER,
    SEEN_SHIFT,
    SIZE_BITS,
    WHICH,
    PhraseTables,
    phrase_tables,
)
from kernels.host.phrase_tree import MAX_NODES, MIN_SURVIVAL, OwnTexts, phrase_trees, room

VOCAB = 6
FEW = st.lists(st.integers(0, VOCAB - 1), max_size=40)


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
            key = hashes(context)[size] >> tables.bits | at << 64 - SIZE_BITS
            same = tables.slots[tables.slots[:, 0] == key, 1].tolist()
            number = max(same, default=0)  # of an empty slot 0
            total, kept, which = number >> SEEN_SHIFT & MOST_SEEN, number >> KEPT_SHIFT, number & WHICH
            in_store = [(which, total)] if kept == 1 else tables.following[which : which + kept].tolist()
            here = [
                text[j + 1] for j in places if j + 1 >= size and list(text[j + 1 - size : j + 1]) == context[-size:]
            ]
            whole = total + OWN * len(here)
            if not whole:
                continue
            one = left / (whole + doubt)
            for token, count in in_store:
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


def tables(texts: list[list[int]], vocab: int = VOCAB) -> PhraseTables:
    return phrase_tables(np.array([token for text in texts for token in (*text, vocab)], np.int64), vocab)


def compiled(of: PhraseTables, text: list[int], start: int, most: int, words: int = 1) -> list[tuple[int, int, float]]:
    ((tree),) = batch(of, [text], [start], [most], words)
    return tree


def batch(
    of: PhraseTables, texts: list[list[int]], starts: list[int], most: list[int], words: int = 1
) -> list[list[tuple[int, int, float]]]:
    rows, longest = len(texts), max(map(len, texts))
    own = OwnTexts(np.zeros((rows, longest + 2), np.int32), np.zeros((rows, words), np.uint64), spans(starts))
    asked = [(row, len(texts[row]), most[row]) for row in range(rows)]
    out = room(rows, sum(most))
    fresh = [token for text in texts for token in text]
    phrase_trees(of, own, np.array(asked), np.array(fresh, np.int32), out)
    tokens, parents = out.nodes.T.tolist()
    nodes = [*zip(tokens, parents, out.chances.tolist(), strict=True)]
    ends = [0, *out.ends.tolist()]
    return [nodes[begin:end] for begin, end in pairwise(ends)]


def spans(starts: list[int]) -> np.ndarray:
    return np.array([(start, 0) for start in starts], np.int64)


@settings(max_examples=300, deadline=None)  # the first one compiles
@given(st.lists(FEW, max_size=5), FEW.filter(bool), st.data())
def test_every_node_is_the_references(texts: list[list[int]], text: list[int], data: st.DataObject) -> None:
    start, most = data.draw(st.integers(0, len(text))), data.draw(st.integers(1, MAX_NODES))
    of = tables(texts)
    assert compiled(of, text, start, most) == phrase_tree_reference(of, text, start, most)


@settings(max_examples=100, deadline=None)
@given(st.lists(FEW, max_size=5), st.lists(FEW, min_size=1, max_size=4), st.integers(1, 9))
def test_a_batchs_trees_are_those_of_each_text(texts: list[list[int]], asked: list[list[int]], most: int) -> None:
    of, counts = tables(texts), [most + i for i in range(len(asked))]
    alone = [compiled(of, text, 0, count) for text, count in zip(asked, counts, strict=True)]
    assert batch(of, asked, [0] * len(asked), counts) == alone


@pytest.mark.parametrize("most", [1, 7, MAX_NODES])
def test_a_large_store_and_a_long_text(most: int) -> None:
    vocab, dice = 5000, np.random.default_rng(3)
    sentences = [dice.integers(0, vocab, 12).tolist() for _ in range(40)]
    texts = [[token for i in dice.integers(0, 40, 30) for token in sentences[i]] for _ in range(30)]
    text = texts[0][:200] + texts[1][:150]
    of = tables(texts, vocab)
    found = compiled(of, text, 20, most, vocab // 64 + 1)
    assert found == phrase_tree_reference(of, text, 20, most)
    assert len(found) == most


def test_the_text_is_marked_as_it_comes() -> None:
    of, text = tables([[1, 2, 3], [1, 2, 4]]), [5, 1, 2, 4, 1, 2]
    own = OwnTexts(np.zeros((1, len(text)), np.int32), np.zeros((1, 1), np.uint64), spans([0]))
    out = room(1, 4)
    for token in text:
        phrase_trees(of, own, np.array([[0, 1, 4]]), np.array([token], np.int32), out)
    assert own.seen[0, 0] == sum(1 << token for token in set(text))
    assert (own.tokens[0].tolist(), own.spans.tolist()) == (text, [[0, len(text)]])
    assert out.nodes[0, 0] == 4


@pytest.mark.parametrize("token", [-1, 64, 2**31 - 1])
def test_tokens_outside_the_vocabulary_touch_no_memory(token: int) -> None:
    of, text = tables([[1, 2, 3]]), [token, 1, token, 1]
    guard = np.zeros((3, 1), np.uint64)
    own = OwnTexts(np.zeros((1, 4), np.int32), guard[1:2], spans([0]))
    out = room(1, 4)
    phrase_trees(of, own, np.array([[0, 4, 4]]), np.array(text, np.int32), out)
    assert out.ends[0] > 0
    assert out.nodes[0, 0] == token and guard.ravel().tolist() == [0, 2, 0]


def test_a_text_of_nothing_has_no_guess() -> None:
    assert compiled(tables([[1, 2, 3]]), [], 0, 4) == []
