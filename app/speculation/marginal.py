"""Decide how many draft tokens are worth asking for, sequence by sequence (design D5)."""

from collections.abc import Sequence as Listed
from dataclasses import dataclass
from itertools import takewhile

import msgspec
import numpy as np

from app.engine.step_costs import StepCosts
from app.speculation.acceptance import AcceptanceEstimate
from app.speculation.draft_costs import DraftCosts, TableCosts
from app.speculation.guard import MIN_GAIN
from kernels.host.best_lengths import Search, best_lengths

DEPTH_CAPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)  # draft lengths tried
MIN_SURVIVAL = 0.02  # less likely tokens never pay; bounds the search
HORIZON_TOKENS = 64  # that a sequence is expected to go on: its costs must pay off within them


def rounds_left(remaining: int) -> int:
    """Return the rounds within which costs should pay off, at two tokens a round."""
    return max(1, min(HORIZON_TOKENS, remaining) // 2)


class Candidate(msgspec.Struct, frozen=True, gc=False):
    expectation: AcceptanceEstimate
    limit: int  # most draft tokens it may ask for, 0 without a live drafter
    read_s: float = 0.0  # what drafters take to read what they have not seen of it
    remaining: int = HORIZON_TOKENS  # tokens it may still generate
    context: int = 0  # cached tokens, which the verifier's attention reads for every row

    @property
    def horizon(self) -> int:
        return rounds_left(self.remaining)


@dataclass(frozen=True, slots=True)
class DraftPrice:
    """Price drafts by the seconds that they add to a round of the verifier.

    Asking b sequences for at most d tokens takes D = draft_costs.seconds(b, d). For `busy_s` of other work D is
    hidden, but for the `share` of the verifier's pace that drafters on the same cores take (0: other machines, 1: the
    same cores); the rest is waited for. Waiting prompts add `prompt_rows` to the step, or, beside drafters elsewhere,
    are read alone in `prompts_s`, whichever is sooner (`app.scheduler.compose`). The host adds `host_s` to a round, and
    `tree_s` for each tree.

    Each token brings the same part of prompts with it, so that what a row of these adds to a step is no part of a
    round's seconds.
    """

    draft_costs: DraftCosts | TableCosts
    busy_s: float = 0.0
    prompt_rows: int = 0
    prompts_s: float = 0.0
    share: float = 0.0
    tree_s: float = 0.0
    host_s: float = 0.0

    def steps_s(self, batch: int, count: int, costs: StepCosts) -> np.ndarray:
        """Return the seconds of a round with a step of `batch` rows and of up to `count` more, (count + 1,) float64."""
        rows = batch + self.prompt_rows
        return np.array(costs.span(rows, count + 1)) + self.host_s - paid_s(batch, self.prompt_rows, costs)

    def table(self, batch: int, depth: int, costs: StepCosts) -> np.ndarray:
        """Return the exposed seconds of drafting, (bit length of `batch` + 1, depth + 1) float64.

        Drafting costs the same for all batches of as many bits.
        """
        sizes = [1 << bits for bits in range(batch.bit_length())]
        seconds = [self.draft_costs.span(size, depth) for size in [0, *sizes]]
        exposed_s = self._exposed_s(np.array(seconds), paid_s(batch, self.prompt_rows, costs))
        exposed_s += self.tree_s * np.array([[0, *sizes]]).T
        exposed_s[0] = exposed_s[:, 0] = 0.0  # nothing is drafted
        return exposed_s

    def reading_s(self, candidate: Candidate) -> float:
        return candidate.read_s * (self.share if self.busy_s or self.prompts_s else 1.0)

    def round_s(self, candidates: Listed[Candidate], depths: Listed[int], costs: StepCosts) -> float:
        """Return the seconds of a round in which each of B candidates asks for so many tokens."""
        size, asked, deepest = len(candidates), sum(map(bool, depths)), max(depths)
        paid = paid_s(size, self.prompt_rows, costs)
        step_s = costs.seconds(size + self.prompt_rows + sum(depths)) + self.host_s - paid
        step_s += costs.reading.step_s((c.context, 1 + depth) for c, depth in zip(candidates, depths, strict=True))
        if not asked:
            return step_s
        reads_s = (self.reading_s(c) / c.horizon for c, depth in zip(candidates, depths, strict=True) if depth)
        draft_s = self._exposed_s(np.array(self.draft_costs.seconds(asked, deepest)), paid)
        return step_s + self.tree_s * asked + float(draft_s) + sum(reads_s)

    def _exposed_s(self, draft_s: np.ndarray, paid_s: float) -> np.ndarray:
        if self.prompts_s:
            apart_s = np.maximum(draft_s, self.prompts_s) + self.share * np.minimum(draft_s, self.prompts_s)
            return np.minimum(draft_s, np.maximum(0.0, apart_s - paid_s))
        return draft_s - np.minimum(draft_s, self.busy_s) * (1.0 - self.share)


def paid_s(batch: int, rows: int, costs: StepCosts) -> float:
    """Return the seconds by which as many rows of prompts lengthen a step that has them already.

    They are no more than a row's part of that step.
    """
    if not rows:
        return 0.0
    step_s = costs.seconds(batch + rows)
    return min(costs.seconds(batch + 2 * rows) - step_s, step_s * rows / (batch + rows))


def draft_lengths(candidates: Listed[Candidate], costs: StepCosts, price: DraftPrice) -> tuple[list[int], float]:
    """Return the draft tokens to ask for, for each of B candidates, and the expected pace over that of plain
    decoding.

    The result maximises (B + expected survival of the n tokens) / (T(B + n) + exposed seconds of drafting), T being
    the step's seconds; reading counts, spread over a sequence's horizon. It is 0 for all, and the pace 1, where that
    gains less than MIN_GAIN. Survival falls with depth, so for each cap on the depth the best n tokens are a prefix of
    one sorted list; all prefixes of all caps are tried.
    """
    if not candidates:
        return [], 1.0
    size = len(candidates)
    flat: list[float] = []
    ends, deepest = [0], 1
    for survival in (c.expectation.survival(c.limit) for c in candidates):
        flat += survival if not survival or survival[-1] >= MIN_SURVIVAL else takewhile(_is_likely, survival)
        deepest = max(deepest, len(flat) - ends[-1])
        ends.append(len(flat))
    reading = costs.reading
    base_s = reading.step_s((c.context, 1) for c in candidates)
    steps_s = price.steps_s(size, len(flat), costs) + base_s
    plain = size / steps_s[0]
    # Of one sequence every prefix is a depth of its own, so one cap tries them all.
    caps = DEPTH_CAPS[: 1 + sum(cap < deepest for cap in DEPTH_CAPS)] if size > 1 else (deepest,)
    search = Search(
        np.array(flat, np.float64),
        np.array(ends),
        np.ones(size),
        np.array([price.reading_s(c) / c.horizon if c.read_s else 0.0 for c in candidates]),
        np.array([c.context * reading.row_token_s for c in candidates]),
        steps_s,
        price.table(size, deepest, costs),
        np.array(caps),
    )
    best = np.empty(size, np.int64)
    pace = best_lengths(search, plain * MIN_GAIN, plain * MIN_GAIN, best)
    return best.tolist(), pace / plain if best.any() else 1.0


def tokens_of(candidates: Listed[Candidate], depths: Listed[int]) -> float:
    """Return the tokens that a round is expected to commit."""
    expected = (sum(c.expectation.survival(depth)) for c, depth in zip(candidates, depths, strict=True))
    return len(candidates) + sum(expected)


def worth_s(
    candidates: Listed[Candidate], depths: Listed[int], costs: StepCosts, gain: float = 1.0, host_s: float = 0.0
) -> float:
    """Return the seconds after which another way is faster; below 0 if it is anyway.

    With that time w both commit at the same pace: (B + S) / (T(B + n) + w) = gain x B / T(B), S being the expected
    survival of the n tokens. `gain`: the other way's pace over that of plain decoding.
    """
    if not candidates:
        return 0.0
    reading = costs.reading
    plain_s = host_s + costs.seconds(len(candidates)) + reading.step_s((c.context, 1) for c in candidates)
    with_s = host_s + costs.seconds(len(candidates) + sum(depths))
    with_s += reading.step_s((c.context, 1 + depth) for c, depth in zip(candidates, depths, strict=True))
    return plain_s * tokens_of(candidates, depths) / len(candidates) / gain - with_s


def warm_up() -> None:
    draft_lengths([Candidate(AcceptanceEstimate(), 1)], StepCosts({1: 1.0}), DraftPrice(DraftCosts()))


def _is_likely(survival: float) -> bool:
    return survival >= MIN_SURVIVAL
