"""Test the compiled look-ups in requests' own texts against plain ones."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.host.own_matches import FOLLOWED, LONGEST, PRIOR_WEIGHT, SIZES, WINDOW, Copies, MatchedTexts, copy_matches

TEXT = st.lists(st.integers(0, 2), max_size=60)


def match_reference(tokens: Sequence[int]) -> tuple[int, int]:
    """Return where the match of a text goes on, and its length; the specification."""
    end = len(tokens)
    for size in SIZES:
        for place in range(end - 1, size - 1, -1):
            length = 0
            while length < min(place, LONGEST) and tokens[place - 1 - length] == tokens[end - 1 - length]:
                length += 1
            if length >= size:
                return place, length
    return 0, 0


class Plain:
    """A text and the rates of its matches, as lists."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.rates = [[0.0, 0.0] for _ in range(LONGEST + 1)]  # followed, seen

    def take(self, fresh: list[int], wider: "Plain") -> None:
        place, length = match_reference(self.tokens)
        for token in fresh if length else ():
            for rates in (self.rates, wider.rates):
                rate = rates[min(length, LONGEST)]
                if rate[1] >= WINDOW:
                    rate[:] = rate[0] / 2, rate[1] / 2
                rate[0] += (self.tokens + fresh)[place] == token
                rate[1] += 1.0
            if (self.tokens + fresh)[place] != token:
                break
            place, length = place + 1, length + 1
        self.tokens = self.tokens + fresh

    def chance(self, length: int, prior: float) -> float:
        followed, seen = self.rates[min(length, LONGEST)]
        return (followed + PRIOR_WEIGHT * prior) / (seen + PRIOR_WEIGHT)

    def guesses(self, most: int, wider: "Plain") -> list[tuple[int, float]]:
        place, length = match_reference(self.tokens)
        period = self.tokens[place:] if length else []
        priors = [wider.chance(length + i, float(FOLLOWED[min(length + i, LONGEST)])) for i in range(most)]
        return [(period[i % len(period)], self.chance(length + i, priors[i])) for i in range(most if period else 0)]


@settings(max_examples=200, deadline=None)  # the first one compiles
@given(st.lists(st.tuples(st.integers(0, 2), TEXT), max_size=12), st.integers(0, 6))
def test_a_batch_is_looked_up_as_its_texts_one_by_one(pieces: list[tuple[int, list[int]]], most: int) -> None:
    longest = 1 + sum(len(piece) for _, piece in pieces)
    texts = MatchedTexts(np.zeros((3, longest), np.int32), np.zeros((3, 3), np.int64), np.zeros((3, 2, LONGEST + 1)))
    wider = np.zeros((2, LONGEST + 1))
    read = np.array([(row, len(piece)) for row, piece in pieces], np.int64).reshape(-1, 2)
    fresh = np.array([token for _, piece in pieces for token in piece], np.int32)
    out = Copies(np.zeros(3 * most, np.int64), np.zeros(3 * most), np.zeros(3, np.int64))
    copy_matches(texts, wider, read, fresh, np.array([(row, most) for row in range(3)]), out)
    plain, every = [Plain(), Plain(), Plain()], Plain()
    for row, piece in pieces:
        plain[row].take(piece, every)
    begun = 0
    for text, end in zip(plain, out.ends.tolist(), strict=True):
        found = [*zip(out.tokens[begun:end].tolist(), out.chances[begun:end].tolist(), strict=True)]
        assert found == text.guesses(most, every)
        begun = end
    assert wider.T.tolist() == every.rates


def test_many_observations_fade() -> None:
    texts = MatchedTexts(np.zeros((1, 1000), np.int32), np.zeros((1, 3), np.int64), np.zeros((1, 2, LONGEST + 1)))
    wider, nothing = np.zeros((2, LONGEST + 1)), np.zeros((0, 2), np.int64)
    out = Copies(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
    for _ in range(900):
        copy_matches(texts, wider, np.array([[0, 1]]), np.zeros(1, np.int32), nothing, out)
    assert WINDOW / 2 <= wider[1, LONGEST] <= WINDOW
