"""Predict which draft tokens are right from the target's states half way.

One predictor is fitted to the target, the other is FASER's rule. At a checkpoint a node's parent
has the state h (d,). With x = h / rms(h), E the head's rows and C a few hundred frequent tokens,
the fitted predictor maps the state to the last layer's, and weighs the token t against the others:

    z = E (x W);  chance = sigmoid(a + b (z_t - log sum_C+t e^z) + c (z_t - max_C z) + d logit(prior))

FASER's rank test (arXiv:2604.20503, papers 2.2) takes the model's own last norm, E (g x), counts the
tokens that are likelier, and drops a token with K of them or more; it looks at several depths, K is
smaller at the deeper ones. They are counted over C, which is a part of the price, or over the whole
vocabulary, as in the paper. `./paceline fit-pruning` makes the folder that all are read from. Knows
neither trees nor passes.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from app.engine.early_exit.decisions import AsyncDecisions, Predictor, RowCost, StepDecisions
from app.engine.early_exit.rows import Decisions
from app.engine.weights.blocks import Weight, dense, take
from app.engine.weights.tensors import Stored, embedding_sha256
from app.errors import ModelRefused
from app.plans import PrunerRule

log = logging.getLogger(__name__)
Count = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Of tokens (n,) int64 at states (n, d) float32: how many tokens are likelier, (n,) int64."""
CARD, WEIGHTS = "pruning.json", "pruning.safetensors"
HEADS = ("lm_head.weight", "model.embed_tokens.weight")
EPSILON = 1e-5
SURE = 1e-3  # a prior is at least so far from 0 and 1


@dataclass(frozen=True, slots=True)
class LensScores:
    """The logits, float32, of n tokens at n states, and those of the tokens compared with."""

    own: np.ndarray  # (n,) the token's logit
    best: np.ndarray  # (n,) the best of the frequent tokens'
    total: np.ndarray  # (n,) log of the sum of e to the power of both


class Lens:
    """The target's head, which reads states as logits of single tokens."""

    def __init__(self, head: "np.ndarray | HeadRows", common: np.ndarray) -> None:
        """Keep `head`, (V, d) float16 or float32, and its rows of the tokens compared with.

        common: (C,) int64, the frequent tokens.
        """
        self._head = head
        self._common = np.ascontiguousarray(head[common].T, np.float32)  # (d, C)

    def scores(self, states: np.ndarray, weight: np.ndarray, tokens: np.ndarray) -> LensScores:
        """Score tokens (n,) int64 at states (n, d) float32; weight: (d, d) float32, applied to the scaled states."""
        own, others = self._logits(scaled(states) @ weight, tokens)
        best = others.max(1)
        top = np.maximum(best, own)
        total = top + np.log(np.exp(others - top[:, None]).sum(1) + np.exp(own - top))
        return LensScores(own, best, total)

    @property
    def products(self) -> int:
        """The multiply-adds of weighing one token against the others."""
        return self._common.size

    def likelier(self, norm: np.ndarray, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Count the frequent tokens likelier than tokens (n,) int64 at states (n, d) float32, under a norm's weight
        (d,) float32; return (n,) int64."""
        own, others = self._logits(scaled(states) * norm, tokens)
        counts: np.ndarray = (others > own[:, None]).sum(1)
        return counts

    def _logits(self, read: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens' own logits, (n,), and the frequent tokens', (n, C), at what is read, (n, d)."""
        return np.einsum("nd,nd->n", read, self._head[tokens].astype(np.float32)), read @ self._common


def scaled(states: np.ndarray) -> np.ndarray:
    """Return states (n, d) scaled to a mean square of one, float32."""
    return np.asarray(states / np.sqrt(np.square(states).mean(1, keepdims=True) + EPSILON), np.float32)


def signs(scores: LensScores, priors: np.ndarray) -> np.ndarray:
    """Return the inputs of the fitted chance, (n, 4) float64; the first column is ones.

    priors: (n,) the drafters' chances.
    """
    prior = np.clip(priors, SURE, 1.0 - SURE)
    ahead = np.clip(scores.own - scores.best, -30.0, 30.0)
    return np.stack([np.ones(len(prior)), scores.own - scores.total, ahead, np.log(prior / (1.0 - prior))], 1)


class FittedPredictor:
    """The predictor fitted to the target (formula in the module's docstring)."""

    def __init__(self, lens: Lens, weights: dict[int, np.ndarray], logistic: dict[int, np.ndarray]) -> None:
        """Take each checkpoint's W, (d, d) float32, and its (a, b, c, d), (4,) float64."""
        self.layers = tuple(sorted(logistic))
        self._lens, self._weights, self._logistic = lens, weights, logistic

    def chances(self, layer: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray) -> np.ndarray:
        """Return the chances, (n,) float64 (see `Predictor`)."""
        scores = self._lens.scores(states, self._weights[layer], tokens)
        found: np.ndarray = 1.0 / (1.0 + np.exp(-(signs(scores, priors) @ self._logistic[layer])))
        return found


class RankPredictor:
    """FASER's rank test (in the module's docstring); a chance is 1 or 0."""

    def __init__(self, count: Count, ranks: dict[int, int]) -> None:
        """Take what counts the likelier tokens, and K by checkpoint."""
        self.layers = tuple(sorted(ranks))
        self._count, self._ranks = count, ranks

    def chances(self, layer: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray) -> np.ndarray:
        """Return the chances, (n,) float64 (see `Predictor`)."""
        return (self._count(states, tokens) < self._ranks[layer]).astype(np.float64)


def load_decisions(
    folder: Path, target: Path, rule: PrunerRule, threads: int, slows: float, whole: Callable[[int | None], Count]
) -> Decisions | None:
    """Load what `fit-pruning` wrote for a rule; None if it was fitted to another target.

    `threads`: of the passes; `slows`: see `AsyncDecisions`; `whole`: makes a count over the whole
    vocabulary on so many threads, None: those of the passes. Raises ModelRefused.
    """
    card, arrays = _read(folder)
    if card["embedding_sha256"] != embedding_sha256(target):
        log.info("the predictor in %s is of another target: nothing is pruned", folder)
        return None
    is_async = rule.endswith("-async")
    try:
        cost = RowCost(**card["row_cost"])
        lens = Lens(head_rows(target), arrays["common"])
        predictor: Predictor
        products = lens.products
        if rule in ("fitted", "fitted-async"):
            logistic = {int(layer): np.array(weights) for layer, weights in card["logistic"].items()}
            weights = {layer: arrays[f"lens.{layer}"].astype(np.float32) for layer in logistic}
            predictor = FittedPredictor(lens, weights, logistic)
            products += len(last_norm(target)) ** 2
        elif rule in ("faser", "faser-async"):
            predictor = RankPredictor(partial(lens.likelier, last_norm(target)), _ranks(card, "ranks"))
        else:
            predictor = RankPredictor(whole(1 if is_async else None), _ranks(card, "whole_ranks"))
            products = cost.head
    except KeyError as error:
        raise ModelRefused(f"{folder} has no {error}: `paceline fit-pruning` writes it") from None
    if not is_async:
        return StepDecisions(predictor, cost.checkpoints(predictor.layers))
    late = cost.late(products, threads)
    checkpoints = cost.checkpoints(predictor.layers, late)
    log.info("early exit: answers come %d layers late; it looks after %s", late, [one.look for one in checkpoints])
    return AsyncDecisions(predictor, checkpoints, slows)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the card and the arrays of a predictor's folder. Raises ModelRefused."""
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text())
        with safe_open(folder / WEIGHTS, framework="np") as file:
            return card, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, ValueError) as error:
        raise ModelRefused(f"no predictor for pruning in {folder}: {error}") from None


def _ranks(card: dict[str, Any], name: str) -> dict[int, int]:
    return {int(layer): int(rank) for layer, rank in card[name].items()}


class HeadRows:
    """A head's rows, expanded when they are looked up: all of them would be as large as the model's file."""

    def __init__(self, head: Weight) -> None:
        self._head = head

    def __getitem__(self, tokens: np.ndarray) -> np.ndarray:
        """Return the rows of tokens (n,) int64, (n, d) float16."""
        return dense(take(self._head, tokens)).numpy().astype(np.float16)


def head_rows(target: Path) -> HeadRows:
    """Return the rows of the model's head, as its file holds them. Raises ModelRefused."""
    return HeadRows(_weight(target, HEADS))


def last_norm(target: Path) -> np.ndarray:
    """Return the weight of the model's last norm, (d,) float32. Raises ModelRefused."""
    return dense(_weight(target, ("model.norm.weight",))).numpy()


def _weight(target: Path, names: tuple[str, ...]) -> Weight:
    """Return the first of these weights that the model's files hold.

    Raises ModelRefused.
    """
    weights = Stored(target)
    for name in names:
        if name in weights:
            return weights[name]
    raise ModelRefused(f"{target} holds none of {', '.join(names)}")
