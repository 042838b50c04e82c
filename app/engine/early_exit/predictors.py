"""Predict which draft tokens are right from the target's states half way.

One predictor is fitted to the target, the other is FASER's rule. At a checkpoint a node's parent
has the state h (d,). With x = h / rms(h), E the head's rows and C a few hundred frequent tokens,
the fitted predictor maps the state to the last layer's, and weighs the token t against the others:

    z = E (x W);  chance = sigmoid(a + b (z_t - log sum_C+t e^z) + c (z_t - max_C z) + d logit(prior))

FASER's rank test (arXiv:2604.20503, papers 2.2) takes the model's own last norm, E (g x), counts the
tokens of C that are likelier, and drops a token with K of them or more; it looks at several depths, K
is smaller at the deeper ones. `./paceline fit-pruning` makes the folder that both are read from.
Knows neither trees nor passes.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import safe_open

from app.engine.early_exit.rows import Predictor
from app.engine.weights.blocks import Weight, dense, take
from app.engine.weights.tensors import Stored, embedding_sha256
from app.errors import ModelRefused

log = logging.getLogger(__name__)
Rule = Literal["fitted", "faser"]
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
    ahead: np.ndarray  # (n,) int64, how many of the frequent tokens are likelier


class Lens:
    """The target's head, which reads states as logits of single tokens."""

    def __init__(self, head: "np.ndarray | HeadRows", common: np.ndarray) -> None:
        """Keep `head`, (V, d) float16 or float32, and its rows of the tokens compared with.

        common: (C,) int64, the frequent tokens.
        """
        self._head = head
        self._common = np.ascontiguousarray(head[common].T, np.float32)  # (d, C)

    def scores(self, states: np.ndarray, weight: np.ndarray, tokens: np.ndarray) -> LensScores:
        """Score tokens (n,) int64 at states (n, d) float32.

        weight: (d, d) float32 applied to the scaled states, or (d,) that scales them only.
        """
        x = scaled(states)
        read = x * weight if weight.ndim == 1 else x @ weight
        own = np.einsum("nd,nd->n", read, self._head[tokens].astype(np.float32))
        others = read @ self._common
        best = others.max(1)
        top = np.maximum(best, own)
        total = top + np.log(np.exp(others - top[:, None]).sum(1) + np.exp(own - top))
        return LensScores(own, best, total, (others > own[:, None]).sum(1))


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

    def __init__(self, lens: Lens, norm: np.ndarray, ranks: dict[int, int]) -> None:
        """Take the weight of the model's last norm, (d,) float32, and K by checkpoint."""
        self.layers = tuple(sorted(ranks))
        self._lens, self._norm, self._ranks = lens, norm, ranks

    def chances(self, layer: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray) -> np.ndarray:
        """Return the chances, (n,) float64 (see `Predictor`)."""
        return (self._lens.scores(states, self._norm, tokens).ahead < self._ranks[layer]).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A predictor and the share of a row's cost behind its last checkpoint."""

    predictor: Predictor
    rest: float


def load_predictor(folder: Path, target: Path, rule: Rule) -> Loaded | None:
    """Load what `fit-pruning` wrote; None if it was fitted to another target.

    Raises ModelRefused.
    """
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text())
        with safe_open(folder / WEIGHTS, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, ValueError) as error:
        raise ModelRefused(f"no predictor for pruning in {folder}: {error}") from None
    if card["embedding_sha256"] != embedding_sha256(target):
        log.info("the predictor in %s is of another target: nothing is pruned", folder)
        return None
    lens = Lens(head_rows(target), arrays["common"])
    if rule == "faser":
        if "ranks" not in card:
            raise ModelRefused(f"{folder} has no ranks for FASER's test: `paceline fit-pruning` writes them")
        ranks = {int(layer): int(rank) for layer, rank in card["ranks"].items()}
        return Loaded(RankPredictor(lens, last_norm(target), ranks), float(card["ranks_rest"]))
    layers, rest = [int(layer) for layer in card["layers"]], float(card["rest"])
    weights = {layer: arrays[f"lens.{layer}"].astype(np.float32) for layer in layers}
    logistic = {layer: np.array(card["logistic"][str(layer)]) for layer in layers}
    return Loaded(FittedPredictor(lens, weights, logistic), rest)


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
