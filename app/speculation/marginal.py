"""Decide how many draft tokens are worth requesting, sequence by sequence (design D5).

Pure functions of estimates and costs: nothing here sends or changes state.
"""

from collections.abc import Sequence as Listed
from dataclasses import dataclass
from itertools import takewhile

import msgspec
import numpy as np

from app.engine.step_costs import StepCosts
from app.messages import LEAST_SURVIVAL
from app.speculation.acceptance import AcceptanceEstimate
from app.speculation.draft_costs import DraftCosts
from kernels.host.best_lengths import Search, best_lengths

DEPTH_CAPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)  # draft lengths tried
MIN_GAIN = 1.05  # least expected pace over plain decoding after a silent decision: costs and chances are estimates
GO_ON_GAIN = 1.02  # and after one that drafted, trials too, and at first: stopping ends what is learnt, for long
HYSTERESIS = 0.05  # by which a silent sequence's survivals count less, so that it does not flicker
MIN_SURVIVAL = 0.02  # less likely tokens never pay; bounds the search
HORIZON_TOKENS = 64  # that a sequence is expected to go on: its costs must pay off within them
PROBE_CHANCE = 0.1  # that the text got easier since the sequence fell silent
PROBE_ACCEPTANCE = 0.8  # of its drafts in that case
MODELS_PART = 0.34  # of right draft tokens: what models add at least
LEAST_ENOUGH = 0.15  # where model-free drafters are less sure than this a model drafts, or its worth stays unknown


def rounds_left(remaining: int) -> int:
    """Return the rounds within which what is done for a sequence should pay off, at two tokens a round.

    `remaining`: tokens that it may still generate.
    """
    return max(1, min(HORIZON_TOKENS, remaining) // 2)


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A sequence that goes into its next round, as the rules of draft lengths see it."""

    expectation: AcceptanceEstimate
    limit: int  # most draft tokens it may ask for, 0 without a live drafter
    read_s: float = 0.0  # what drafters take to read what they have not seen of it
    remaining: int = HORIZON_TOKENS  # tokens it may still generate
    context: int = 0  # cached tokens, which the verifier's attention reads for every row

    @property
    def horizon(self) -> int:
        """Return the rounds within which its costs should pay off (`rounds_left`)."""
        return rounds_left(self.remaining)


@dataclass(frozen=True, slots=True)
class DraftPrice:
    """Price drafts: the seconds that they add to a round of the verifier.

    Asking b sequences for at most d tokens takes D = draft_costs.seconds(b, d), hop included. While the verifier
    has `busy_s` of other work, D hides behind it except for the `share` of the verifier's pace that drafters on
    the same cores take (0: other machines, 1: the very same cores); what is longer than `busy_s` is waited
    for in full. In an idle system that is all of D.

    Prompts that wait to be read add `beside_s` to the step with drafts or without. While drafts are
    waited for the verifier reads prompts alone for `between_s`, and plain decoding would have gone on:
    a round with drafts takes the longer of D and that.
    """

    draft_costs: DraftCosts
    busy_s: float = 0.0
    beside_s: float = 0.0
    between_s: float = 0.0
    share: float = 0.0

    def table(self, batch: int, depth: int) -> np.ndarray:
        """Return the exposed seconds of drafting, for the sizes of up to `batch` sequences and up to `depth` tokens.

        (bit length of `batch` + 1, depth + 1) float64: drafting costs the same for all batches of as many bits.
        """
        sizes = [1 << bits for bits in range(batch.bit_length())]
        seconds = [self.draft_costs.span(size, depth) for size in [0, *sizes]]
        exposed_s = self._exposed_s(np.array(seconds))
        exposed_s[0] = exposed_s[:, 0] = 0.0  # nothing is drafted
        return exposed_s

    def seconds(self, batch: int, depth: int) -> float:
        """Return the exposed seconds of drafting `depth` tokens, at least one, for `batch` sequences."""
        return float(self._exposed_s(np.array([self.draft_costs.seconds(batch, depth)]))[0])

    def reading_s(self, candidate: Candidate) -> float:
        """Return the exposed seconds of reading what drafters have not seen of it."""
        return candidate.read_s * (self.share if self.busy_s or self.between_s else 1.0)

    def _exposed_s(self, draft_s: np.ndarray) -> np.ndarray:
        if self.between_s:
            return np.maximum(draft_s, self.between_s) + self.share * np.minimum(draft_s, self.between_s)
        return draft_s - np.minimum(draft_s, self.busy_s) * (1.0 - self.share)


def draft_lengths(
    candidates: Listed[Candidate],
    costs: StepCosts,
    price: DraftPrice,
    beat: float = 1.0,
    least_gain: float = MIN_GAIN,
) -> tuple[list[int], float]:
    """Return the draft tokens to request for each of B candidates, and the gain.

    The candidates go into their next round together. Drafts that do not exist yet have a price, so
    it is in the denominator: of all draft lengths, take the one that maximises (B + expected
    survival of the n tokens requested) / (T(B + n) + exposed draft time). The exposed time is what
    `price` says, and reading what drafters have not seen, spread over a sequence's horizon. 0 for all
    where speculation does not gain `least_gain`, and where the gain is below `beat`. Survival falls with depth,
    so for each cap on the depth the best n tokens are a prefix of one sorted list; all prefixes of all
    caps are tried.

    A sequence that did not ask last time must gain HYSTERESIS more to begin again. The caller records what
    was asked (`AcceptanceEstimate.record_asked`): nothing changes here. The gain is the expected pace
    over that of plain decoding, 1 where nothing is requested.
    """
    survivals = [c.expectation.survival(c.limit) for c in candidates]
    fainter = [1.0 - HYSTERESIS * (c.expectation.silent_rounds > 0) for c in candidates]
    return _best(candidates, survivals, fainter, costs, price, beat, least_gain)


def probe(
    candidates: Listed[Candidate], asked: list[int], costs: StepCosts, draft_costs: DraftCosts, share: float
) -> list[bool]:
    """Choose the candidates whose next token is drafted without a wait, to see whether the text got easier.

    They are due after a growing number of silent rounds (`AcceptanceEstimate.is_probing`), if what
    drafters take from the verifier's cores meanwhile is less than what it may bring: with
    PROBE_CHANCE, the gain there would be if drafts were right PROBE_ACCEPTANCE of the time, over
    the candidate's horizon.
    """
    chosen = [not n and c.limit > 0 and c.expectation.is_probing for n, c in zip(asked, candidates, strict=True)]
    if not any(chosen):
        return chosen
    survivals = [[PROBE_ACCEPTANCE**depth for depth in range(1, c.limit + 1)] for c in candidates]
    _, ratio = _best(candidates, survivals, [1.0] * len(candidates), costs, DraftPrice(draft_costs, share=share))
    gain_s = (1.0 - 1.0 / ratio) * costs.seconds(len(candidates)) / len(candidates)  # a round, of one's share
    cost_s = draft_costs.seconds(1, 1)
    return [
        is_due and 2 * c.horizon * gain_s * PROBE_CHANCE > share * (cost_s + c.read_s)
        for is_due, c in zip(chosen, candidates, strict=True)
    ]


def worth_s(candidates: Listed[Candidate], depths: Listed[int], costs: StepCosts) -> float:
    """Return the seconds that drafts of these depths may take before plain decoding is faster.

    With that time w both commit at the same pace: (B + S) / (T(B + n) + w) = B / T(B), S being the
    expected survival of the n tokens requested.
    """
    if not candidates:
        return 0.0
    expected = sum(sum(c.expectation.survival(depth)) for c, depth in zip(candidates, depths, strict=True))
    reading = costs.reading
    plain_s = costs.seconds(len(candidates)) + reading.step_s((c.context, 1) for c in candidates)
    with_s = costs.seconds(len(candidates) + sum(depths))
    with_s += reading.step_s((c.context, 1 + depth) for c, depth in zip(candidates, depths, strict=True))
    return max(0.0, plain_s * (1.0 + expected / len(candidates)) - with_s)


def least_survival(candidates: Listed[Candidate], depths: Listed[int], costs: StepCosts, price: DraftPrice) -> float:
    """Return the survival that a guess must have for one more token behind it to pay, in any sequence of the batch.

    Right with chance p it adds p to the B + S tokens of a round, S being the expected survival of the n that are
    requested for b of B candidates, d each at most; it takes one row more, and its part of a step of drafting. Those
    are even at

        p = (B + S) / (T(B + n) + D(b, d)) x ((T(B + 2n) - T(B + n)) / n + (D(b, 2d) - D(b, d)) / (d b)),

    T being the step's seconds and D the exposed ones of drafting. It is LEAST_SURVIVAL at most, and before any
    draft: a step of drafting that other chains of the round take in any case costs a chain nothing.
    """
    asked, rows, deepest = sum(map(bool, depths)), sum(depths), max(depths, default=0)
    if not asked or not price.draft_costs.is_known:
        return LEAST_SURVIVAL
    expected = sum(sum(c.expectation.survival(depth)) for c, depth in zip(candidates, depths, strict=True))
    rows_s, twice_s = (costs.seconds(len(candidates) + n) for n in (rows, 2 * rows))
    draft_s, longer_s = (price.seconds(asked, depth) for depth in (deepest, 2 * deepest))
    reading = costs.reading
    step_s = (
        rows_s + price.beside_s + reading.step_s((c.context, 1 + n) for c, n in zip(candidates, depths, strict=True))
    )
    context = sum(c.context * n for c, n in zip(candidates, depths, strict=True)) / rows
    row_s = (twice_s - rows_s) / rows + context * reading.row_token_s
    token_s = (longer_s - draft_s) / (deepest * asked)
    even = (len(candidates) + expected) / (step_s + draft_s) * (row_s + token_s)
    return min(LEAST_SURVIVAL, max(MIN_SURVIVAL, even))


def skip_models_above(full: Listed[float], model_free: Listed[float], round_s: float, model_s: float) -> float:
    """Return the chance of a model-free first token from which on no model is run.

    `full`, `model_free`: survival by depth with models, and of model-free drafters alone, whose first
    tokens are right with chance m on average. Models add to a round what the two sums differ by, but
    MODELS_PART of the tokens at least, which they have before anything is known. Where model-free
    drafters are right with chance p, a model can add (1 - p) / (1 - m) of that, each token at the price
    of one at present, round_s / (1 + expected), `round_s` being one sequence's part of the round; drafting
    for one more takes `model_s`: next to nothing where a step of drafting takes as long for many. They are even at
    1 - p = (1 - m) model_s / (what models add x the token's price).
    """
    expected = sum(full)
    gain_s = max(MODELS_PART * expected, expected - sum(model_free)) * round_s / (1.0 + expected)
    unsure = 1.0 - (model_free[0] if model_free else 0.0)
    return max(LEAST_ENOUGH, 1.0 - unsure * model_s / gain_s) if gain_s > 0.0 else LEAST_ENOUGH


def warm_up() -> None:
    """Compile what `draft_lengths` calls, before it is urgent."""
    draft_lengths([Candidate(AcceptanceEstimate(), 1)], StepCosts({1: 1.0}), DraftPrice(DraftCosts()))


def _best(
    candidates: Listed[Candidate],
    survivals: list[list[float]],
    weights: list[float],
    costs: StepCosts,
    price: DraftPrice,
    beat: float = 1.0,
    least_gain: float = MIN_GAIN,
) -> tuple[list[int], float]:
    """Return the draft lengths of the best pace, and that pace over that of plain decoding."""
    if not candidates:
        return [], 1.0
    size = len(candidates)
    flat: list[float] = []
    ends, deepest = [0], 1
    for survival in survivals:
        flat += survival if not survival or survival[-1] >= MIN_SURVIVAL else takewhile(_is_likely, survival)
        deepest = max(deepest, len(flat) - ends[-1])
        ends.append(len(flat))
    reading = costs.reading
    base_s = reading.step_s((c.context, 1) for c in candidates) + price.beside_s
    plain = size / (costs.seconds(size) + base_s)
    # Of one sequence every prefix is a depth of its own, so one cap tries them all.
    caps = DEPTH_CAPS[: 1 + sum(cap < deepest for cap in DEPTH_CAPS)] if size > 1 else (deepest,)
    search = Search(
        np.array(flat, np.float64),
        np.array(ends),
        np.array(weights),
        np.array([price.reading_s(c) / c.horizon if c.read_s else 0.0 for c in candidates]),
        np.array([c.context * reading.row_token_s for c in candidates]),
        np.array(costs.span(size, len(flat) + 1)) + base_s,
        price.table(size, deepest),
        np.array(caps),
    )
    best = np.empty(size, np.int64)
    pace = best_lengths(search, plain * least_gain, plain * max(least_gain, beat), best)
    return best.tolist(), pace / plain if best.any() else 1.0


def _is_likely(survival: float) -> bool:
    return survival >= MIN_SURVIVAL
