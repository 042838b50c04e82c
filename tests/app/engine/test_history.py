"""Test what is read of the tokens before a row: the same as of a copy, and no more than is new."""

import random
from collections import Counter

from app.engine.history import TokenCounts, TokenHistory
from app.state import CachedSequence
from tests.app.engine.counted_tokens import Counted


def test_a_history_is_its_tokens_and_those_after_them() -> None:
    draw = random.Random(0)
    for _ in range(200):
        known, added = ([draw.randrange(9) for _ in range(draw.randint(0, 5))] for _ in range(2))
        copy, view = known + added, TokenHistory(known, added)
        assert (list(view), len(view)) == (copy, len(copy))
        for start in (None, *range(-7, 12)):
            for stop in (None, *range(-7, 12)):
                for step in (None, 1, 2, -1):
                    assert view[start:stop:step] == copy[start:stop:step]
        assert [view[i] for i in range(-len(copy), len(copy))] == copy + copy


def test_a_historys_end_is_read_without_its_beginning() -> None:
    known = Counted(range(1000))
    assert TokenHistory(known, [1, 2])[990:] == [*range(990, 1000), 1, 2]
    assert known.read == 10


def test_only_new_tokens_are_counted() -> None:
    tokens = Counted([1, 2, 2] * 1000)
    counts, sequence = TokenCounts(), CachedSequence("r", tokens)
    assert counts.of(sequence) == Counter(list(tokens))
    tokens.read = 0
    tokens += [2, 7]
    assert counts.of(sequence) == {1: 1000, 2: 2001, 7: 1}
    assert tokens.read == 2
    counts.forget(sequence)
    tokens[:] = [5]
    assert counts.of(sequence) == {5: 1}
