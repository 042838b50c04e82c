"""Test the compiled search over draft lengths against its reference, length by length and bit by bit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.host.best_lengths import Search, best_lengths, best_lengths_reference

CHANCES = st.one_of(st.sampled_from([0.5, 1.0]), st.floats(0.02, 1.0))
SECONDS = st.one_of(st.just(0.0), st.floats(0.0, 0.01))


@st.composite
def searches(draw: st.DrawFn) -> Search:
    chances = draw(st.lists(st.lists(CHANCES, max_size=6), min_size=1, max_size=6))
    size, deepest = len(chances), max(1, *map(len, chances), 1)
    survivals = [float(value) for own in chances for value in np.cumprod(own)]

    def seconds(count: int) -> np.ndarray:
        return np.array([draw(SECONDS) for _ in range(count)], np.float64)

    bits = size.bit_length() + 1
    return Search(
        survivals=np.array(survivals, np.float64),
        ends=np.cumsum([0, *map(len, chances)]),
        weights=np.array([draw(st.sampled_from([1.0, 0.95])) for _ in range(size)]),
        reading_s=seconds(size),
        token_s=seconds(size) if draw(st.booleans()) else np.zeros(size),
        verify_s=0.001 + np.cumsum(seconds(len(survivals) + 1)),
        drafting_s=seconds(bits * (deepest + 1)).reshape(bits, -1),
        caps=np.array([cap for cap in (1, 2, 3, 4, 6) if cap < deepest] + [deepest]),
    )


@settings(max_examples=300, deadline=None)  # the first one compiles
@given(searches(), st.sampled_from([0.0, 1.0, 1.05]), st.sampled_from([0.0, 1.05, 1.5]))
def test_lengths_and_pace_are_the_references(search: Search, least: float, hoped: float) -> None:
    plain = len(search.weights) / float(search.verify_s[0])
    best = np.empty(len(search.weights), np.int64)
    pace = best_lengths(search, least * plain, hoped * plain, best)
    assert (best.tolist(), pace) == best_lengths_reference(search, least * plain, hoped * plain)


def test_the_likelier_sequence_asks_for_more() -> None:
    survivals = np.array([0.9, 0.81, 0.73, 0.3, 0.09, 0.027])
    drafting_s = np.full((3, 4), 0.001)
    search = Search(
        survivals, np.array([0, 3, 6]), np.ones(2), np.zeros(2), np.zeros(2), 0.005 + 0.001 * np.arange(7), drafting_s,
        np.array([1, 2, 3]),
    )  # fmt: skip
    best = np.empty(2, np.int64)
    assert best_lengths(search, 0.0, 0.0, best) > 2 / 0.005
    assert best.tolist() == [3, 0]
