"""Test the compiled tree of phrases against its reference, node by node."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.phrase_tables import PhraseTables, phrase_tables
from kernels.cpu.phrase_tree import MAX_NODES, OwnText, phrase_tree, phrase_tree_reference, room

VOCAB = 6
FEW = st.lists(st.integers(0, VOCAB - 1), max_size=40)


def tables(texts: list[list[int]], vocab: int = VOCAB) -> PhraseTables:
    return phrase_tables(np.array([token for text in texts for token in (*text, vocab)], np.int64), vocab)


def compiled(of: PhraseTables, text: list[int], start: int, most: int, words: int = 1) -> list[tuple[int, int, float]]:
    out = room()
    own = OwnText(np.array([*text, 0, 0], np.int32), np.zeros(words, np.uint64), start, start, len(text))
    count = phrase_tree(of, own, most, out)
    return [*zip(*(values[:count].tolist() for values in out), strict=True)]


@settings(max_examples=300, deadline=None)  # the first one compiles
@given(st.lists(FEW, max_size=5), FEW.filter(bool), st.data())
def test_every_node_is_the_references(texts: list[list[int]], text: list[int], data: st.DataObject) -> None:
    start, most = data.draw(st.integers(0, len(text))), data.draw(st.integers(1, MAX_NODES))
    of = tables(texts)
    assert compiled(of, text, start, most) == phrase_tree_reference(of, text, start, most)


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
    buffer, seen, out = np.array(text, np.int32), np.zeros(1, np.uint64), room()
    for end in range(1, len(text) + 1):
        phrase_tree(of, OwnText(buffer, seen, 0, end - 1, end), 4, out)
    assert seen[0] == sum(1 << token for token in set(text))
    assert out.tokens[0] == 4


@pytest.mark.parametrize("token", [-1, 64, 2**31 - 1])
def test_tokens_outside_the_vocabulary_touch_no_memory(token: int) -> None:
    of, text = tables([[1, 2, 3]]), [token, 1, token, 1]
    guard = np.zeros(3, np.uint64)
    own = OwnText(np.array(text, np.int32), guard[1:2], 0, 0, len(text))
    out = room()
    assert phrase_tree(of, own, 4, out) > 0
    assert out.tokens[0] == token and guard.tolist() == [0, 2, 0]


def test_a_text_of_nothing_has_no_guess() -> None:
    assert compiled(tables([[1, 2, 3]]), [], 0, 4) == []
