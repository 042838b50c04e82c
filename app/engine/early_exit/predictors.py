"""Which draft tokens the target will say, foretold from its states half way: fitted to the target, or by FASER's rule.

At a checkpoint a node's parent has the state h (d,). With x = h / rms(h), E the head's rows and C a few hundred
frequent tokens, the fitted one reads the state as what the last layer will make of it, and weighs the token t against
the others:

    z = E (x W);  chance = sigmoid(a + b (z_t - log sum_C+t e^z) + c (z_t - max_C z) + d logit(prior))

FASER's (arXiv:2604.20503, as far as it is known) reads it with the model's own last norm, E (g x), and keeps a token
that is at most `delta` below the best of the others. `./paceline fit-pruning` makes the folder that both are read from.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import safe_open

from app.engine.early_exit.rows import Predictor
from app.engine.weights.tensors import embedding_sha256
from app.errors import ModelRefused

log = logging.getLogger(__name__)
Rule = Literal["fitted", "faser"]
CARD, WEIGHTS = "pruning.json", "pruning.safetensors"
HEADS = ("lm_head.weight", "model.embed_tokens.weight")
EPSILON = 1e-5
SURE = 1e-3  # a prior is at least so far from 0 and 1


@dataclass(frozen=True, slots=True)
class LensScores:
    """How a state rates a token."""

    own: np.ndarray  # (n,) the token's logit
    best: np.ndarray  # (n,) the best of the frequent tokens'
    total: np.ndarray  # (n,) log of the sum of e to the power of both


class Lens:
    """Reads states as logits of single tokens."""

    def __init__(self, head: np.ndarray, common: np.ndarray) -> None:
        """head: (V, d) rows of the target's head; common: (C,) the tokens that others are compared with."""
        self._head = head
        self._common = np.ascontiguousarray(head[common].T, np.float32)  # (d, C)

    def scores(self, states: np.ndarray, weight: np.ndarray, tokens: np.ndarray) -> LensScores:
        """states (n, d), tokens (n,); weight: (d, d), or (d,) for what is only scaled."""
        x = scaled(states)
        read = x * weight if weight.ndim == 1 else x @ weight
        own = np.einsum("nd,nd->n", read, self._head[tokens].astype(np.float32))
        others = read @ self._common
        best = others.max(1)
        top = np.maximum(best, own)
        total = top + np.log(np.exp(others - top[:, None]).sum(1) + np.exp(own - top))
        return LensScores(own, best, total)


def scaled(states: np.ndarray) -> np.ndarray:
    """(n, d) of mean square one."""
    return np.asarray(states / np.sqrt(np.square(states).mean(1, keepdims=True) + EPSILON), np.float32)


def signs(scores: LensScores, priors: np.ndarray) -> np.ndarray:
    """(n, 4) what the fitted chance is made of; the first column is ones."""
    prior = np.clip(priors, SURE, 1.0 - SURE)
    ahead = np.clip(scores.own - scores.best, -30.0, 30.0)
    return np.stack([np.ones(len(prior)), scores.own - scores.total, ahead, np.log(prior / (1.0 - prior))], 1)


class FittedPredictor:
    """See above."""

    def __init__(self, lens: Lens, weights: dict[int, np.ndarray], logistic: dict[int, np.ndarray]) -> None:
        """By checkpoint: W (d, d), and (a, b, c, d)."""
        self.layers = tuple(sorted(logistic))
        self._lens, self._weights, self._logistic = lens, weights, logistic

    def chances(self, layer: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray) -> np.ndarray:
        """See Predictor."""
        scores = self._lens.scores(states, self._weights[layer], tokens)
        found: np.ndarray = 1.0 / (1.0 + np.exp(-(signs(scores, priors) @ self._logistic[layer])))
        return found


class MarginPredictor:
    """See above. A chance is one or nothing."""

    def __init__(self, lens: Lens, norm: np.ndarray, delta: dict[int, float]) -> None:
        """norm: (d,) weight of the model's last norm."""
        self.layers = tuple(sorted(delta))
        self._lens, self._norm, self._delta = lens, norm, delta

    def chances(self, layer: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray) -> np.ndarray:
        """See Predictor."""
        scores = self._lens.scores(states, self._norm, tokens)
        return (scores.own >= scores.best - self._delta[layer]).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A predictor and what is left of a row's cost behind its last checkpoint."""

    predictor: Predictor
    rest: float


def load_predictor(folder: Path, target: Path, rule: Rule) -> Loaded | None:
    """What `fit-pruning` wrote; None if it was fitted to another target. Raises ModelRefused."""
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
    layers = [int(layer) for layer in card["layers"]]
    rest = float(card["rest"])
    if rule == "faser":
        return Loaded(
            MarginPredictor(lens, last_norm(target), {layer: card["delta"][str(layer)] for layer in layers}), rest
        )
    weights = {layer: arrays[f"lens.{layer}"].astype(np.float32) for layer in layers}
    logistic = {layer: np.array(card["logistic"][str(layer)]) for layer in layers}
    return Loaded(FittedPredictor(lens, weights, logistic), rest)


def head_rows(target: Path) -> np.ndarray:
    """(V, d) float16: the rows of the model's head."""
    return _tensor(target, HEADS).astype(np.float16)


def last_norm(target: Path) -> np.ndarray:
    """(d,) float32: the weight of the model's last norm."""
    return _tensor(target, ("model.norm.weight",))


def _tensor(target: Path, names: tuple[str, ...]) -> np.ndarray:
    """The first of these that the model's files hold, float32. Raises ModelRefused."""
    for name in names:
        for path in sorted(target.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:  # numpy knows no bfloat16
                if name in file.keys():  # noqa: SIM118 - not a dict
                    return np.asarray(file.get_tensor(name).float().numpy())
    raise ModelRefused(f"{target} holds none of {', '.join(names)}")
