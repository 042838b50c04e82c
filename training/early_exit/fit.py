"""Fit the K of FASER's rank test (`app.engine.early_exit.rank_test`) to counts of likelier tokens."""

from typing import NamedTuple

import numpy as np

FALSE_SHARE = 0.03  # of the right tokens that K may drop at a checkpoint


class Judged(NamedTuple):
    """A checkpoint on held-out prompts."""

    found: float  # of the wrong tokens, the share that leaves
    lost: float  # of the right tokens, the share that leaves
    auc: float  # chance that a right token has fewer likelier ones than a wrong token


def fit_rank(counts: np.ndarray, is_right: np.ndarray) -> int:
    """Return the least K that drops at most FALSE_SHARE of the right tokens.

    counts: (n,) int64, of each token those that are likelier; is_right: (n,) bool.
    """
    right = counts[is_right]
    return 1 + int(np.quantile(right, 1.0 - FALSE_SHARE, method="higher")) if len(right) else 1


def judge(counts: np.ndarray, is_right: np.ndarray, rank: int) -> Judged:
    """Evaluate a K on tokens that it was not fitted to; the arguments are those of `fit_rank`."""
    gone = counts >= rank
    return Judged(_share(gone[~is_right]), _share(gone[is_right]), auc(-counts, is_right))


def auc(scores: np.ndarray, is_right: np.ndarray) -> float:
    """Return the chance that a right token scores above a wrong one, ties half; 0.5 where one kind is missing.

    scores: (n,) float; is_right: (n,) bool.
    """
    wrong = np.sort(scores[~is_right])
    if not len(wrong) or is_right.all():
        return 0.5
    below = np.searchsorted(wrong, scores[is_right], "left") + np.searchsorted(wrong, scores[is_right], "right")
    return float(below.mean() / 2.0 / len(wrong))


def _share(part: np.ndarray) -> float:
    return float(part.mean()) if len(part) else 0.0
