"""Test the fit of the rank test."""

import numpy as np
import pytest

from training.early_exit.fit import FALSE_SHARE, auc, fit_rank, judge


def test_the_rank_drops_few_right_tokens_and_one_less_would_drop_more():
    draw = np.random.default_rng(0)
    is_right = draw.random(4000) < 0.5
    counts = np.where(is_right, draw.integers(0, 40, 4000), draw.integers(20, 200, 4000))
    rank = fit_rank(counts, is_right)
    right = counts[is_right]
    assert (right >= rank).mean() <= FALSE_SHARE < (right >= rank - 1).mean()
    judged = judge(counts, is_right, rank)
    assert judged.lost <= FALSE_SHARE and 0.8 < judged.found < 1.0 and judged.auc > 0.9
    assert fit_rank(counts, np.zeros(4000, bool)) == 1


@pytest.mark.parametrize(
    ("scores", "right", "expected"),
    [
        ([1, 2, 3, 4], [0, 0, 1, 1], 1.0),
        ([1, 2, 3, 4], [1, 1, 0, 0], 0.0),
        ([1, 1], [0, 1], 0.5),
        ([1, 2], [1, 1], 0.5),
    ],
)
def test_auc_counts_ties_half_and_one_kind_as_chance(scores, right, expected):
    assert auc(np.array(scores, float), np.array(right, bool)) == expected
