"""Test the compiled learning of confidences against a plain one, bit by bit."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.host.confidence_sums import (
    BINS,
    CALIBRATED,
    CEILING,
    DECAY,
    ERROR,
    FLOOR,
    KEPT,
    LENGTH,
    NO_GUESS,
    OBSERVED,
    PRIOR_WEIGHT,
    RAW,
    REPORT_GROWTH,
    SIZE,
    UNKNOWN,
    WEIGHT,
    JudgedDrafts,
    calibrated,
    fresh_sums,
    judged_reference,
    learn,
)

Node = tuple[int, int, float]  # token, parent, confidence


def test_only_nodes_below_a_right_parent_are_judged() -> None:
    chain = [0, 1, 2, 3]
    assert [*judged_reference([7, 8, 9, 1], chain, (), [7, 8, 5, 1])] == [(1, True), (2, True), (3, False)]
    assert [*judged_reference([7, 8, 9], chain[:3], (), [7])] == [(1, True)]
    assert [*judged_reference([7, 8, 9], chain[:3], (), [])] == []


def test_siblings_are_judged_each_and_borrowed_nodes_not() -> None:
    nodes = ([7, 8, 9, 6], [0, 0, 1, 2])
    assert [*judged_reference(*nodes, (), [8, 6])] == [(1, False), (2, True), (4, True)]
    assert [*judged_reference(*nodes, (2,), [8, 6])] == [(1, False), (4, True)]


def bin_below(confidence: float) -> tuple[int, float]:
    place = min(BINS - 1.0, max(0.0, confidence * BINS - 0.5))
    low = min(BINS - 2, int(place))
    return low, place - low


def chance(sums: Sequence[float], confidence: float) -> float:
    low, share = bin_below(confidence)
    parts = []
    for i, part in ((low, 1.0 - share), (low + 1, share)):
        left = sums[KEPT + i]
        error, weight = sums[BINS + i] * left + sums[ERROR + i], sums[i] * left + sums[WEIGHT + i]
        parts.append(part * error / (weight + PRIOR_WEIGHT))
    return min(CEILING, max(FLOOR, confidence + (parts[0] + parts[1])))


def observe(sums: list[float], confidence: float, is_right: bool) -> None:
    for at, prediction in ((CALIBRATED, chance(sums, confidence)), (RAW, confidence)):
        sums[at] *= REPORT_GROWTH
        place = at + 2 + min(BINS - 1, int(prediction * BINS))
        for i, value in enumerate((1, prediction, is_right)):
            sums[place + i * BINS] += sums[at] * value
    low, share = bin_below(confidence)
    for i, part in ((low, 1.0 - share), (low + 1, share)):
        kept = 1.0 - (1.0 - DECAY) * part
        sums[KEPT + i] *= kept
        sums[WEIGHT + i] = sums[WEIGHT + i] * kept + part
        sums[ERROR + i] = sums[ERROR + i] * kept + part * (is_right - confidence)
    sums[OBSERVED] += 1.0


NODES = st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 4), st.floats(0, 1) | st.just(NO_GUESS)), max_size=8)


@settings(max_examples=200, deadline=None)  # the first one compiles
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=3),
    st.lists(st.tuples(NODES, st.integers(0, 3), st.integers(0, 2)), max_size=6),
    st.lists(st.floats(0, 5), min_size=SIZE, max_size=SIZE),
)
def test_a_batch_is_learnt_as_its_nodes_one_by_one(
    texts: list[list[int]], drafts: list[tuple[list[Node], int, int]], base: list[float]
) -> None:
    sums = fresh_sums(4)
    sums[1, :SIZE] = base
    expected = sums.tolist()
    drafts = [(nodes, row, text % len(texts)) for nodes, row, text in drafts]
    for nodes, row, text in drafts:
        tokens, parents, confidences = zip(*nodes, strict=True) if nodes else ((), (), ())
        borrowed = [i for i, value in enumerate(confidences, start=1) if value == NO_GUESS]
        for node, is_right in judged_reference(tokens, parents, borrowed, texts[text]):
            if row != UNKNOWN:
                observe(expected[row], confidences[node - 1], is_right)
    every = [node for nodes, _, _ in drafts for node in nodes]
    learn(
        JudgedDrafts(
            np.array([[token for token, _, _ in every], [parent for _, parent, _ in every]], np.int64),
            np.array([confidence for _, _, confidence in every], np.float64),
            np.array(
                [
                    np.cumsum([len(nodes) for nodes, _, _ in drafts], dtype=np.int64),
                    [row for _, row, _ in drafts],
                    [text for _, _, text in drafts],
                ],
                np.int64,
            ),
            np.array([token for text in texts for token in text], np.int64),
            np.cumsum([len(text) for text in texts]),
        ),
        sums,
    )
    assert sums.tolist() == expected
    assert all(calibrated(sums, row, c) == chance(expected[row], c) for row in range(4) for c in (0.0, 0.33, 0.5, 1.0))


def test_a_drafter_of_which_nothing_is_known_keeps_its_confidence() -> None:
    sums = fresh_sums(1)
    assert sums.shape == (1, LENGTH)
    assert [calibrated(sums, UNKNOWN, c) for c in (0.0, 0.25, 0.7, 1.0)] == [FLOOR, 0.25, 0.7, CEILING]


def test_a_long_record_stays_finite() -> None:
    sums, count = fresh_sums(2), 30_000
    ends = np.array([[*range(1, count + 1)], [1] * count, [0] * count], np.int64)
    nodes = np.zeros((2, count), np.int64)
    learn(JudgedDrafts(nodes, np.full(count, 0.75), ends, np.array([0]), np.array([1])), sums)
    assert sums[1, OBSERVED] == count
    assert np.isfinite(sums).all() and sums[1, RAW] < 1e9 and 0.0 < sums[1, RAW + 1] / sums[1, RAW] < 1e-9
