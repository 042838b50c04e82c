"""Search each request's draft length for the least seconds a committed token, as FASER does (papers 2.1), a baseline.

    cost_i(s) = latency(batch, all lengths) / tokens_i(s),   tokens_i(s) = 1 + s a_i(s)

a_i(s) is the accepted part of s draft tokens in a window of the request's rounds; a Gaussian process over lengths
estimates the lengths not tried, and the length of the lowest bound on costs is taken (GP-LCB), that of the upper bound
on a_i(s). Kernel, window and constants of the paper are not known.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final

import numpy as np

from app.engine.step_costs import StepCosts
from app.speculation.draft_costs import DraftCosts
from app.speculation.length_protocol import DraftSeconds
from app.speculation.marginal import Candidate

WINDOW = 32  # rounds of a request
MAX_REQUESTS = 1024
FIRST_LENGTH = 4  # of requests that another one is decided before
BETA = 1.0  # of the bound, mean + sqrt(BETA) x deviation
SCALE = 2.0  # draft tokens in which the kernel falls by 1/e^0.5
SPREAD, NOISE = 0.2, 0.2  # deviations of the accepted part: of what the prior misses, of one round


class FaserLength:
    drafters: Final = None

    def __init__(self) -> None:
        self._windows: OrderedDict[str, deque[tuple[int, float]]] = OrderedDict()  # (length, accepted part) of rounds
        self._lengths: dict[str, int] = {}  # the last choice, by request

    def depths(
        self,
        candidates: Mapping[str, Candidate],
        costs: StepCosts,
        drafting: DraftCosts,
        now_s: float,
        committed: Mapping[str, int],
    ) -> list[int]:
        self.update(committed)
        found = self.search(candidates, costs, drafting)
        self.record(dict(zip(candidates, found, strict=True)))
        return found

    def update(self, committed: Mapping[str, int]) -> None:
        for request_id, tokens in committed.items():
            self._update(request_id, tokens)

    def search(self, candidates: Mapping[str, Candidate], costs: StepCosts, drafting: DraftSeconds) -> list[int]:
        """Choose each candidate's length, one after the other, then cut all alike; change nothing.

        A draft no longer than the batch's longest costs no drafting time; without the cut all would be as long.
        """
        lengths = {one: min(self._lengths.get(one, FIRST_LENGTH), c.limit) for one, c in candidates.items()}
        for request_id, candidate in candidates.items():
            if candidate.limit:
                others = [length for one, length in lengths.items() if one != request_id]
                lengths[request_id] = self._best(request_id, candidate, others, costs, drafting)
        return self._cut(candidates, [*lengths.values()], costs, drafting)

    def record(self, lengths: Mapping[str, int]) -> None:
        for request_id, length in lengths.items():
            self._lengths.pop(request_id, None)  # the newest stand last
            self._lengths[request_id] = length
        while len(self._lengths) > MAX_REQUESTS:
            del self._lengths[next(iter(self._lengths))]

    def _update(self, request_id: str, tokens: int) -> None:
        length = self._lengths.get(request_id, 0)
        if length:
            window = self._windows.setdefault(request_id, deque(maxlen=WINDOW))
            window.append((length, min(length, max(0, tokens - 1)) / length))
        while len(self._windows) > MAX_REQUESTS:
            self._lengths.pop(self._windows.popitem(last=False)[0], None)

    def _best(
        self, request_id: str, candidate: Candidate, others: list[int], costs: StepCosts, drafting: DraftSeconds
    ) -> int:
        every = np.arange(1, candidate.limit + 1)
        rows, deepest = len(others) + 1 + sum(others), max(others, default=0)
        drafted = sum(length > 0 for length in others) + 1
        latency_s = [
            costs.seconds(rows + s)
            + costs.reading.seconds(candidate.context, 1 + s)
            + drafting.seconds(drafted, max(deepest, s))
            for s in every.tolist()
        ]
        mean, deviation = self._accepted(request_id, candidate, every)
        tokens = 1.0 + every * np.clip(mean + BETA**0.5 * deviation, 0.0, 1.0)
        return int(every[np.argmin(np.array(latency_s) / tokens)])

    def _cut(
        self, candidates: Mapping[str, Candidate], lengths: list[int], costs: StepCosts, drafting: DraftSeconds
    ) -> list[int]:
        deepest, drafted = max(lengths, default=0), sum(length > 0 for length in lengths)
        if deepest < 2 or drafted < 2:
            return lengths
        cuts = np.arange(1, deepest + 1)
        own = np.minimum(np.array(lengths)[:, None], cuts)  # (B, cuts)
        tokens = np.full(len(cuts), float(len(lengths)))
        for (request_id, candidate), depths in zip(candidates.items(), own, strict=True):
            if candidate.limit:
                mean, deviation = self._accepted(request_id, candidate, np.arange(1, candidate.limit + 1))
                hoped = np.clip(mean + BETA**0.5 * deviation, 0.0, 1.0)
                tokens += np.where(depths > 0, depths * hoped[np.maximum(depths, 1) - 1], 0.0)
        latency_s = np.array(
            [
                costs.seconds(int(rows)) + drafting.seconds(drafted, cut)
                for rows, cut in zip((len(lengths) + own.sum(0)).tolist(), cuts.tolist(), strict=True)
            ]
        )
        latency_s += costs.reading.step_s((candidate.context, 1) for candidate in candidates.values())
        cut = int(cuts[np.argmin(latency_s / tokens)])
        return [min(length, cut) for length in lengths]

    def _accepted(self, request_id: str, candidate: Candidate, every: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and deviation of the accepted part at each length, both (L,) float64; `every` (L,) int64.

        The prior mean is that of the request's survivals. Rounds of one length count as their mean with less noise:
        the same posterior.
        """
        prior = np.cumsum(candidate.expectation.survival(candidate.limit)) / every
        window = [(length, part) for length, part in self._windows.get(request_id, ()) if length <= len(prior)]
        if not window:
            return prior, np.full(len(every), SPREAD)
        seen = np.array(window, dtype=np.float64)
        points, own, counts = np.unique(seen[:, 0], return_inverse=True, return_counts=True)
        missed = np.bincount(own.ravel(), seen[:, 1]) / counts - prior[points.astype(np.int64) - 1]
        known = _kernel(points, points) + np.diag(NOISE**2 / counts)
        across = _kernel(every, points)
        solved = np.linalg.solve(known, np.column_stack([missed, across.T]))
        variance = SPREAD**2 - np.einsum("ij,ji->i", across, solved[:, 1:])
        return prior + across @ solved[:, 0], np.sqrt(np.maximum(variance, 0.0))


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(SPREAD**2 * np.exp(-0.5 * ((a[:, None] - b[None, :]) / SCALE) ** 2))
