"""Fit a predictor of rejected draft tokens to recorded drafts, and evaluate it.

A layer's states are mapped linearly to final ones (the lens), and a logistic regression over their
scores gives the chance that a token is right. Nothing is known of how the drafts were recorded.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.engine.early_exit.predictors import (
    FittedPredictor,
    Lens,
    LensScores,
    RankPredictor,
    scaled,
    signs,
)
from training.early_exit.trees import Nodes, Recording

RIDGE = 1e-2  # of the states' mean square
PENALTY = 1e-3  # of the logistic's squared weights
ROUNDS = 25  # of Newton's method
FALSE_SHARE = 0.03  # of the right tokens that FASER's K may drop at a checkpoint
POINTS = (0.01, 0.02, 0.05, 0.1, 0.2)  # shares of right tokens dropped, at which the ROC is read


class Fit(NamedTuple):
    """The parameters of one checkpoint, as they are stored."""

    weight: np.ndarray  # (d, d) float32
    logistic: np.ndarray  # (4,)
    rank: int  # K of FASER's test


@dataclass(frozen=True, slots=True)
class Judged:
    """A checkpoint's scores on held-out prompts. A positive is a rejected draft token."""

    nodes: int  # that are worth a row by their drafters' confidence
    dropped: float  # share of them
    precision: float  # of those dropped, the share that the target would have rejected
    recall: float  # of the rejected, the share dropped
    lost: float  # of the accepted, the share dropped
    net_rows: float  # rows' prices gained per node: those saved less the tokens lost
    auc: float  # of nodes whose parents are right: the chance that a right one scores above a wrong one
    auc_prior: float  # the same of the drafters' own confidence
    roc: dict[float, float]  # share of the wrong ones found where so many of the right ones are dropped


def fit_layer(recording: Recording, layer: int, lens: Lens, norm: np.ndarray, train: np.ndarray) -> Fit:
    """Fit the checkpoint after `layer` on some of the prompts.

    `norm`: (d,) float32, the target's last norm; `train`: (prompts,) bool, the prompts to learn from.
    """
    nodes, rows = recording.nodes, train[recording.prompts]
    weight = ridge(scaled(recording.states[layer][rows].astype(np.float32)), recording.finals[rows].astype(np.float32))
    wanted = train[nodes.prompts] & np.array(nodes.is_reached)
    right = np.array(nodes.is_right)[wanted]
    found = signs(_scores(recording, layer, lens, weight, wanted), np.array(nodes.priors)[wanted])
    ahead = _scores(recording, layer, lens, norm, wanted).ahead[right]
    rank = 1 + int(np.quantile(ahead, 1.0 - FALSE_SHARE, method="higher")) if len(ahead) else 1
    return Fit(weight, logistic(found, right.astype(np.float64)), rank)


def judge(
    recording: Recording,
    layer: int,
    fitted: FittedPredictor | RankPredictor,
    test: np.ndarray,
    price: float,
    rest: float,
) -> Judged:
    """Evaluate a predictor on the prompts of `test`, (prompts,) bool.

    `price`: of a row, in tokens; a node whose survival by its drafters' confidence is lower has no row.
    `rest`: the share of a row's cost after the checkpoint.
    """
    nodes = recording.nodes
    states = recording.states[layer][nodes.rows].astype(np.float32)
    chances = fitted.chances(layer, states, np.array(nodes.tokens), np.array(nodes.priors))
    survival = paths(chances, nodes)
    right, reached = np.array(nodes.is_right), np.array(nodes.is_reached)
    ours = test[nodes.prompts]
    worth = ours & (np.array(nodes.survival) >= price)
    accepted, dropped = right & reached & worth, worth & (survival < price * rest)
    saved = dropped.sum() * rest - (dropped & accepted).sum() / price
    on = ours & reached
    return Judged(
        nodes=int(worth.sum()),
        dropped=_share(dropped, worth),
        precision=_share(dropped & ~accepted, dropped),
        recall=_share(dropped & ~accepted, worth & ~accepted),
        lost=_share(dropped & accepted, accepted),
        net_rows=float(saved / max(1, worth.sum())),
        auc=auc(chances[on], right[on]),
        auc_prior=auc(np.array(nodes.priors)[on], right[on]),
        roc={point: _found(chances[on], right[on], point) for point in POINTS},
    )


def paths(chances: np.ndarray, nodes: Nodes) -> np.ndarray:
    """Multiply the nodes' chances, (n,), along their paths; return their survival, (n,) float64."""
    survival = chances.astype(np.float64).tolist()
    for i, parent in enumerate(nodes.parents):
        if parent >= 0:
            survival[i] *= survival[parent]
    return np.array(survival)


def ridge(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the matrix (d, d') float32 that maps x (n, d) nearest to y (n, d'): least squares with RIDGE."""
    whole, mixed = (x.T @ x).astype(np.float64), (x.T @ y).astype(np.float64)
    found: np.ndarray = np.linalg.solve(whole + RIDGE * len(x) * np.eye(x.shape[1]), mixed)
    return found.astype(np.float32)


def logistic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Fit a logistic regression of y (n,) in {0, 1} on x (n, k) by Newton's method; return weights (k,) float64."""
    weights = np.zeros(x.shape[1])
    for _ in range(ROUNDS):
        chances = 1.0 / (1.0 + np.exp(-(x @ weights)))
        slope = x.T @ (chances - y) / len(y) + PENALTY * weights
        bend = (x * (chances * (1.0 - chances))[:, None]).T @ x / len(y) + PENALTY * np.eye(x.shape[1])
        weights = weights - np.linalg.solve(bend, slope)
    return weights


def auc(scores: np.ndarray, right: np.ndarray) -> float:
    """Return the chance that a right node scores above a wrong one, ties half; 0.5 where one kind is missing.

    scores: (n,) float; right: (n,) bool.
    """
    wrong = np.sort(scores[~right])
    if not len(wrong) or right.all():
        return 0.5
    below = np.searchsorted(wrong, scores[right], "left") + np.searchsorted(wrong, scores[right], "right")
    return float(below.mean() / 2.0 / len(wrong))


def _found(chances: np.ndarray, right: np.ndarray, point: float) -> float:
    if not right.any() or right.all():
        return 0.0
    return float((chances[~right] < np.quantile(chances[right], point)).mean())


def _scores(recording: Recording, layer: int, lens: Lens, weight: np.ndarray, wanted: np.ndarray) -> LensScores:
    nodes = recording.nodes
    states = recording.states[layer][np.array(nodes.rows)[wanted]].astype(np.float32)
    return lens.scores(states, weight, np.array(nodes.tokens)[wanted])


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(part.sum() / max(1, whole.sum()))
