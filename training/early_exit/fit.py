"""Fit a predictor of rejected draft tokens to recorded drafts, and evaluate it.

A layer's states are mapped linearly to final ones (the lens), and a logistic regression over their
scores gives the chance that a token is right. FASER's K is a quantile of the right tokens' counts.
Nothing is known of how the drafts were recorded.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.engine.early_exit.predictors import Lens, scaled, signs
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


def fit_layer(recording: Recording, layer: int, lens: Lens, train: np.ndarray) -> Fit:
    """Fit the checkpoint after `layer` on some of the prompts; train: (prompts,) bool, those."""
    nodes, rows = recording.nodes, train[recording.prompts]
    weight = ridge(scaled(recording.states[layer][rows].astype(np.float32)), recording.finals[rows].astype(np.float32))
    wanted = train[nodes.prompts] & np.array(nodes.is_reached)
    states = recording.at_nodes(layer)[wanted]
    scores = lens.scores(states, weight, np.array(nodes.tokens)[wanted])
    found = signs(scores, np.array(nodes.priors)[wanted])
    return Fit(weight, logistic(found, np.array(nodes.is_right)[wanted].astype(np.float64)))


def fit_rank(recording: Recording, counts: np.ndarray, train: np.ndarray) -> int:
    """Return FASER's K: the least that so many likelier tokens drop at most FALSE_SHARE of the right ones.

    counts: (n,) int64, of each node the tokens likelier than it; train: (prompts,) bool, the prompts
    to learn from.
    """
    nodes = recording.nodes
    right = counts[train[nodes.prompts] & np.array(nodes.is_reached) & np.array(nodes.is_right)]
    return 1 + int(np.quantile(right, 1.0 - FALSE_SHARE, method="higher")) if len(right) else 1


def judge(
    recording: Recording, chances: np.ndarray, scores: np.ndarray, test: np.ndarray, price: float, rest: float
) -> Judged:
    """Evaluate a checkpoint on the prompts of `test`, (prompts,) bool.

    chances: (n,) float64, of the nodes; scores: (n,), what the chances were made of, higher for a
    likelier node. `price`: of a row, in tokens; a node whose survival by its drafters' confidence is
    lower has no row. `rest`: the share of a row's cost after the checkpoint.
    """
    nodes = recording.nodes
    right, reached = np.array(nodes.is_right), np.array(nodes.is_reached)
    ours = test[nodes.prompts]
    worth = ours & (np.array(nodes.survival) >= price)
    accepted, dropped = right & reached & worth, worth & (paths(chances, nodes) < price * rest)
    on = ours & reached
    return Judged(
        nodes=int(worth.sum()),
        dropped=_share(dropped, worth),
        precision=_share(dropped & ~accepted, dropped),
        recall=_share(dropped & ~accepted, worth & ~accepted),
        lost=_share(dropped & accepted, accepted),
        net_rows=net_rows(recording, {0: chances}, test, price, lambda _: rest),
        auc=auc(scores[on], right[on]),
        auc_prior=auc(np.array(nodes.priors)[on], right[on]),
        roc={point: _found(scores[on], right[on], point) for point in POINTS},
    )


def net_rows(
    recording: Recording,
    chances: Mapping[int, np.ndarray],
    test: np.ndarray,
    price: float,
    rest: Callable[[int], float],
) -> float:
    """Return the rows' prices gained per node by some checkpoints in one pass: those saved less the tokens lost.

    chances: by layers passed, (n,) float64 each; `test`, `price`: see `judge`; `rest`: the share of a
    row's cost after so many layers.
    """
    nodes = recording.nodes
    worth = test[nodes.prompts] & (np.array(nodes.survival) >= price)
    there, saved = worth.copy(), 0.0
    for layer in sorted(chances):
        gone = there & (paths(chances[layer], nodes) < price * rest(layer))
        saved += gone.sum() * rest(layer)
        there &= ~gone
    lost = (worth & ~there & np.array(nodes.is_right) & np.array(nodes.is_reached)).sum()
    return float((saved - lost / price) / max(1, worth.sum()))


def choose(gain: Callable[[tuple[int, ...]], float], layers: Iterable[int], count: int | None) -> tuple[int, ...]:
    """Return the checkpoints that gain most together, found one by one; `count` of them, or as many as gain more.

    `gain` tells it of some of the layers.
    """
    chosen: tuple[int, ...] = ()
    left = list(layers)
    while left and (count is None or len(chosen) < count):
        best = max(left, key=lambda layer: gain((*chosen, layer)))
        if count is None and chosen and gain((*chosen, best)) <= gain(chosen):
            break
        chosen = tuple(sorted((*chosen, best)))
        left.remove(best)
    return chosen


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


def _found(scores: np.ndarray, right: np.ndarray, point: float) -> float:
    if not right.any() or right.all():
        return 0.0
    return float((scores[~right] < np.quantile(scores[right], point)).mean())


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(part.sum() / max(1, whole.sum()))
