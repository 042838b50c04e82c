"""Decide draft lengths by other rules than marginal gain (`app.stages.length.marginal`), as baselines.

`fixed:N` always asks for N tokens, and so does `tree:N`. `uniform` asks for the same number for every sequence of a
batch, the best one by the costs of the marginal rule: it shows what lengths by request are worth.
`faser` is FASER's adaptive drafter (arXiv:2604.20503), reconstructed: its kernel, state and
constants are not known. All of a draft is verified: the whole tree with `tree:N`, else its main branch.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import replace
from math import inf, log2
from typing import Final, Protocol

import numpy as np

from app.estimates.draft_costs import DraftCosts
from app.estimates.step_costs import StepCosts
from app.messages import Record
from app.stages.length.draft_modes import DraftModes
from app.stages.length.marginal import Candidate
from app.stages.length.planner import DraftBatch, LengthDecision
from app.state import Tree

WINDOW = 256  # observations that FASER's search keeps
BETA = 4.0  # of its confidence bound, mean - sqrt(BETA) x deviation
# Doublings of the batch and draft tokens in which its kernel falls by 1/e^0.5.
SCALES = np.array([1.0, 2.0])
# Deviations of the residual and of one observation, as parts of the prediction.
SPREAD, NOISE = 0.3, 0.6


class LengthPolicy(Protocol):
    """Decide how many draft tokens each sequence of a batch asks for."""

    def depths(
        self, candidates: Listed[Candidate], costs: StepCosts, drafting: DraftCosts, now_s: float, tokens: int
    ) -> list[int]:
        """Return each candidate's draft length.

        `tokens`: committed by all since the last decision; `now_s`: monotonic.
        """
        ...


def length_policy(kind: str) -> LengthPolicy | None:
    """Look up a baseline length policy; None for marginal gain."""
    name, _, number = kind.partition(":")
    rules: dict[str, LengthPolicy] = {"uniform": UniformLength(), "faser": FaserLength()}
    return FixedLength(int(number)) if number else rules.get(name)


class BaselineController:
    """Decide by a baseline policy; a `LengthPlanner` that has all of what is drafted verified."""

    def __init__(self, policy: LengthPolicy, *, is_tree: bool = False) -> None:
        """Decide by `policy`. With `is_tree` trees are verified whole, else their main branches."""
        self.modes: Final = DraftModes()
        self._policy = policy
        self._is_tree = is_tree
        self._last: Mapping[str, int] = {}  # tokens of the last batch's sequences, by request

    def is_quiet(self, records: Listed[Record]) -> bool:
        """Return False: a baseline decides at every step."""
        return False

    def plan(self, batch: DraftBatch) -> LengthDecision:
        """Decide for one batch; drafts of all drafters are waited for as long as the policy allows."""
        drafting = self.modes.with_models.costs
        depths = self.decide(batch.candidates, batch.lengths, batch.costs, drafting, batch.now_s)
        return LengthDecision(depths, [False] * len(depths), is_model_free=False, worth_s=inf, is_priced=False)

    def trim(self, tree: Tree) -> Tree:
        """Reduce the tree to its main branch unless trees are wanted; all of the rest is verified."""
        return whole(tree) if self._is_tree else whole_chain(tree)

    def decide(
        self,
        candidates: Listed[Candidate],
        lengths: Mapping[str, int],
        costs: StepCosts,
        drafting: DraftCosts,
        now_s: float,
    ) -> list[int]:
        """Decide the draft tokens of each candidate; `lengths`: their sequences' tokens, by request.

        The policy learns what came of its last choice only from the same batch: otherwise time and
        tokens belong to other sequences.
        """
        is_same = lengths.keys() == self._last.keys()
        tokens = sum(length - self._last[name] for name, length in lengths.items()) if is_same else 0
        self._last = lengths
        depths = self._policy.depths(candidates, costs, drafting, now_s, tokens)
        for candidate, depth in zip(candidates, depths, strict=True):
            candidate.expectation.record_asked(depth)
        return depths


def whole_chain(tree: Tree) -> Tree:
    """Keep the tree's main branch, all of which is to be verified."""
    return whole(tree.keep(tree.main_branch()))


def whole(tree: Tree) -> Tree:
    """Return a tree all of which is to be verified."""
    return replace(tree, survival=[1.0] * len(tree))


class FixedLength:
    """Ask for the same number of tokens at every step."""

    def __init__(self, tokens: int) -> None:
        """Ask for `tokens` tokens."""
        self._tokens = tokens

    def depths(
        self, candidates: Listed[Candidate], costs: StepCosts, drafting: DraftCosts, now_s: float, tokens: int
    ) -> list[int]:
        """Return the fixed length, within each candidate's limit."""
        return [min(self._tokens, c.limit) for c in candidates]


class UniformLength:
    """Ask for the one length for all that gives the most tokens a second; 0 allowed."""

    def depths(
        self, candidates: Listed[Candidate], costs: StepCosts, drafting: DraftCosts, now_s: float, tokens: int
    ) -> list[int]:
        """Return the best common length, within each candidate's limit."""
        every = range(max((c.limit for c in candidates), default=0) + 1)
        return _cut(candidates, min(every, key=lambda length: _token_s(candidates, length, costs, drafting)))


class FaserLength:
    """Ask for the lengths of the least seconds a token, by GP-LCB over (batch, mean length).

    The process models the residual of what the costs predict; mean lengths start at 1. A batch's
    tokens go to the sequences whose next one is likeliest to be right, so lengths are per request.
    """

    def __init__(self) -> None:
        self._seen = deque[tuple[float, float, float]](maxlen=WINDOW)  # log2 batch, length, measured / predicted - 1
        self._last: tuple[float, int, int, float] | None = None  # when, batch, length, predicted seconds a token

    def depths(
        self, candidates: Listed[Candidate], costs: StepCosts, drafting: DraftCosts, now_s: float, tokens: int
    ) -> list[int]:
        """Update the process with the last choice, then choose the mean length of the lowest bound."""
        longest = max((c.limit for c in candidates), default=0)
        self._update(now_s, tokens)
        if not longest:
            return [0] * len(candidates)
        every = np.arange(1, longest + 1)
        predicted = np.array([_token_s(candidates, int(length), costs, drafting) for length in every])
        mean, deviation = self._posterior(log2(len(candidates)), every)
        length = int(every[np.argmin(predicted * (1.0 + mean - BETA**0.5 * deviation))])
        self._last = now_s, len(candidates), length, float(predicted[length - 1])
        return self._shared(candidates, length)

    def _update(self, now_s: float, tokens: int) -> None:
        """Update the process with the seconds a token of the last choice."""
        if self._last is not None and tokens > 0:
            at_s, batch, length, predicted_s = self._last
            residual = (now_s - at_s) / tokens / predicted_s - 1.0
            self._seen.append((log2(batch), float(length), min(4.0, residual)))
        self._last = None

    def _posterior(self, size: float, every: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and deviation of the residual at each length, both (L,) float64.

        `size`: log2 of the batch; `every`: (L,) int64 lengths. Observations of one batch and length
        count as their mean with less noise: the same posterior, of few points instead of the
        window.
        """
        if not self._seen:
            return np.zeros(len(every)), np.full(len(every), SPREAD)
        seen = np.array(self._seen)
        points, own, counts = np.unique(seen[:, :2], axis=0, return_inverse=True, return_counts=True)
        means = np.bincount(own.ravel(), seen[:, 2]) / counts
        at = np.stack([np.full(len(every), size), every], axis=1)
        known = _kernel(points, points) + np.diag(NOISE**2 / counts)
        across = _kernel(at, points)  # (L, points)
        solved = np.linalg.solve(known, np.column_stack([means, across.T]))
        variance = SPREAD**2 - np.einsum("ij,ji->i", across, solved[:, 1:])
        return across @ solved[:, 0], np.sqrt(np.maximum(variance, 0.0))

    @staticmethod
    def _shared(candidates: Listed[Candidate], length: int) -> list[int]:
        survivals = [c.expectation.survival(c.limit) for c in candidates]
        order = sorted((-s, depth, i) for i, own in enumerate(survivals) for depth, s in enumerate(own, start=1))
        found = [0] * len(candidates)
        for _, depth, i in order[: length * len(candidates)]:
            found[i] = max(found[i], depth)
        return found


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the covariances (A, B) of points (A, 2) and (B, 2), all float64."""
    apart = (a[:, None, :] - b[None, :, :]) / SCALES
    return np.asarray(SPREAD**2 * np.exp(-0.5 * (apart**2).sum(axis=2)))


def _cut(candidates: Listed[Candidate], length: int) -> list[int]:
    return [min(length, c.limit) for c in candidates]


def _token_s(candidates: Listed[Candidate], length: int, costs: StepCosts, drafting: DraftCosts) -> float:
    """Return seconds a token if all asked for so many, by the costs and estimates."""
    depths = _cut(candidates, length)
    tokens = sum(1.0 + sum(c.expectation.survival(depth)) for c, depth in zip(candidates, depths, strict=True))
    reading = costs.reading
    verify_s = costs.seconds(len(candidates) + sum(depths))
    verify_s += sum(reading.seconds(c.context, 1 + depth) for c, depth in zip(candidates, depths, strict=True))
    return (verify_s + drafting.seconds(sum(depth > 0 for depth in depths), max(depths, default=0))) / tokens
