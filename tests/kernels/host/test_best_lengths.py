"""Test the compiled search over draft lengths against its reference, length by length and bit by bit."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.host.best_lengths import Search, best_lengths

CHANCES = st.one_of(st.sampled_from([0.5, 1.0]), st.floats(0.02, 1.0))
SECONDS = st.one_of(st.just(0.0), st.floats(0.0, 0.01))


Token = tuple[float, int, int]  # (-weighted survival, depth, candidate): sorts the likeliest first


def best_lengths_reference(search: Search, least_pace: float, hoped_pace: float) -> tuple[list[int], float]:
    """Return each candidate's length at the best pace above `least_pace`, and that pace; the specification.

    0 for all, and `least_pace`, where there is none, and where not even drafts at the least cost would be above
    `hoped_pace`.
    """
    ends, size = search.ends.tolist(), len(search.weights)
    tokens: list[Token] = sorted(
        (-float(search.survivals[at]) * float(search.weights[i]), at - ends[i] + 1, i)
        for i in range(size)
        for at in range(ends[i], ends[i + 1])
    )
    best, best_pace = [0] * size, least_pace
    verify_s, token_s = search.verify_s.tolist(), search.token_s.tolist()
    committed = accumulate((-token[0] for token in tokens), initial=float(size))
    least_s = float(search.drafting_s[1:, 1].min())
    if max(c / (s + least_s) for c, s in zip(committed, verify_s, strict=True)) <= hoped_pace:
        return best, best_pace
    plain = size / verify_s[0]
    if any(token_s):  # a token's worth, less that of the time to read its context, at the plain pace
        tokens.sort(key=lambda token: (token[0] + plain * token_s[token[2]], *token[1:]))
    for cap in search.caps.tolist():
        allowed = [token for token in tokens if token[1] <= cap]
        n, pace = _best_prefix(allowed, search)
        if pace > best_pace:
            best, best_pace = [0] * size, pace
            for _, depth, i in allowed[:n]:
                best[i] = max(best[i], depth)
    return best, best_pace


def _best_prefix(tokens: Sequence[Token], search: Search) -> tuple[int, float]:
    """Return how many tokens to take from the front for the best pace, and that pace."""
    committed, deepest, read_s, asked = float(len(search.weights)), 0, 0.0, set[int]()
    best_n, best_pace = 0, 0.0
    for n, (negative, depth, i) in enumerate(tokens, start=1):
        committed -= negative
        read_s += float(search.token_s[i])
        if i not in asked:
            read_s += float(search.reading_s[i])
            asked.add(i)
        deepest = max(deepest, depth)
        drafted_s = float(search.drafting_s[len(asked).bit_length(), deepest])
        pace = committed / (float(search.verify_s[n]) + drafted_s + read_s)
        if pace > best_pace:
            best_n, best_pace = n, pace
    return best_n, best_pace


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
