"""Learn how far each drafter's confidence is from the truth, and correct it; for a batch of drafts in one call.

A drafter has a row of decaying sums. Ten bins of confidence, whose centres are whole numbers of
x = confidence * BINS - 0.5, keep the weight of what was seen there and the sum of (truth - confidence).
The calibrated chance is

    confidence + (1 - share) * error(low) / (weight(low) + PRIOR_WEIGHT) + share * error(low + 1) / (...)

with `low` the last centre below the confidence and `share` the way to the next one. Two records, of the
confidences and of their calibrated values, keep by bin of the prediction: weight, predictions, truth.
There the newest weigh most: instead of decaying all that came before, `unit` grows.

A part of each sum is the store's, its base; the rest was added since, with the share of the base that is left.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kernels.jit import entry, kernel

BINS = 10
SIZE = 2 * BINS + 2 * 3 * BINS + 1  # of the base: weights, errors, the record of confidences, of values, observations
PRIOR_WEIGHT = 8.0  # observations the identity counts for in a bin
DECAY = 0.995  # of a bin's past at each new observation in it: a memory of about 200
REPORT_GROWTH = 1.001  # of an observation's weight in a record: a memory of about 1000 over all bins
FLOOR = 0.001  # nothing is certain: calibrated values lie in [FLOOR, 1 - FLOOR]
CEILING = 1.0 - FLOOR
NO_GUESS = -1.0  # in place of a confidence: nothing is learnt of the node
UNKNOWN = 0  # the row of drafters that nothing is known of: it keeps every confidence

# Places in a row.
KEPT = SIZE  # by bin, of the base's weights and errors
WEIGHT = KEPT + BINS
ERROR = WEIGHT + BINS
RAW = ERROR + BINS  # unit, share kept of the base times that, and the sums
CALIBRATED = RAW + 2 + 3 * BINS
OBSERVED = CALIBRATED + 2 + 3 * BINS
LENGTH = OBSERVED + 1


class JudgedDrafts(NamedTuple):
    """Drafts whose tokens' truth is known, side by side."""

    nodes: np.ndarray  # (2, N) int64: tokens, and parents in the node's draft (0: the root)
    confidences: np.ndarray  # (N,) float64, or NO_GUESS
    drafts: np.ndarray  # (3, D) int64: where each draft's nodes end, its drafter's row, and its place in `texts`
    tokens: np.ndarray  # (C,) int64, the tokens that came after the drafts' roots, text after text
    texts: np.ndarray  # (T,) int64, where each text's tokens end


def fresh_sums(rows: int) -> np.ndarray:
    """Return the sums of so many drafters of which nothing was seen."""
    sums = np.zeros((rows, LENGTH))
    sums[:, KEPT:WEIGHT] = 1.0
    sums[:, RAW : RAW + 2] = sums[:, CALIBRATED : CALIBRATED + 2] = 1.0
    return sums


def judged_reference(
    tokens: Sequence[int], parents: Sequence[int], borrowed: Collection[int], text: Sequence[int]
) -> Iterator[tuple[int, bool]]:
    """Yield each node of a draft that a text can judge, from 1, and whether it is right; the specification.

    Those are the nodes whose parent is right and which are not borrowed, before the first one
    without a sound parent. Of equal siblings the first one's children count.
    """
    places = {0: 0}  # of the text: below each right node
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=False), start=1):
        if not 0 <= parent < node:
            return
        place = places.get(parent, len(text))
        if place == len(text):
            continue
        is_right = token == text[place]
        if is_right and place + 1 not in places.values():
            places[node] = place + 1
        if node not in borrowed:
            yield node, is_right


@entry
def learn(given: JudgedDrafts, sums: np.ndarray) -> None:
    """Learn from every node of drafts that their texts can judge; `sums`: (rows, LENGTH)."""
    begun = 0
    longest = 0
    for draft in range(given.drafts.shape[1]):
        longest = max(longest, given.drafts[0, draft] - begun)
        begun = given.drafts[0, draft]
    places = np.empty(longest + 1, np.int64)  # of each node: the place in the text of its children; -1: it is wrong
    begun = 0
    for draft in range(given.drafts.shape[1]):
        end, row, text = given.drafts[0, draft], given.drafts[1, draft], given.drafts[2, draft]
        first = given.texts[text - 1] if text else 0
        learn_draft(given, begun, end, given.tokens[first : given.texts[text]], places, sums[row], row == UNKNOWN)
        begun = end


@kernel
def learn_draft(
    given: JudgedDrafts,
    begun: int,
    end: int,
    text: np.ndarray,
    places: np.ndarray,
    sums: np.ndarray,
    is_unknown: bool,
) -> None:
    """Learn from one draft's nodes."""
    places[0], deepest = 0, 0
    for i in range(end - begun):
        token, parent, confidence = given.nodes[0, begun + i], given.nodes[1, begun + i], given.confidences[begun + i]
        if parent < 0 or parent > i:
            return
        place = places[parent]
        places[i + 1] = -1
        if place < 0 or place >= len(text):
            continue
        is_right = token == text[place]
        if is_right and place == deepest:
            deepest += 1
            places[i + 1] = deepest
        if 0.0 <= confidence <= 1.0 and not is_unknown:
            add(sums, confidence, is_right)


@kernel
def add(sums: np.ndarray, confidence: float, is_right: bool) -> None:
    """Add an observation to a drafter's sums."""
    truth = 1.0 if is_right else 0.0
    record(sums[CALIBRATED:OBSERVED], chance_of(sums, confidence), truth)
    record(sums[RAW:CALIBRATED], confidence, truth)
    low, share = bin_below(confidence)
    for i in range(2):
        part = 1.0 - share if i == 0 else share
        kept = 1.0 - (1.0 - DECAY) * part
        sums[KEPT + low + i] *= kept
        sums[WEIGHT + low + i] = sums[WEIGHT + low + i] * kept + part
        sums[ERROR + low + i] = sums[ERROR + low + i] * kept + part * (truth - confidence)
    sums[OBSERVED] += 1.0


@kernel
def record(sums: np.ndarray, prediction: float, truth: float) -> None:
    """Add a prediction to a record: its unit, the share of the base that is kept, and its sums."""
    i = 2 + min(BINS - 1, int(prediction * BINS))
    sums[0] *= REPORT_GROWTH
    unit = sums[0]
    sums[i] += unit
    sums[BINS + i] += unit * prediction
    sums[2 * BINS + i] += unit * truth
    if unit > 1e9:  # long before a float is full
        for j in range(1, 2 + 3 * BINS):
            sums[j] /= unit
        sums[0] = 1.0


@entry
def calibrated(sums: np.ndarray, row: int, confidence: float) -> float:
    """Return the calibrated chance of one token of a drafter."""
    return float(chance_of(sums[row], confidence))


@kernel
def chance_of(sums: np.ndarray, confidence: float) -> float:
    """Return the calibrated chance by a drafter's sums."""
    low, share = bin_below(confidence)
    high = low + 1
    left = sums[KEPT + low]
    error, weight = sums[BINS + low] * left + sums[ERROR + low], sums[low] * left + sums[WEIGHT + low]
    below = (1.0 - share) * error / (weight + PRIOR_WEIGHT)
    left = sums[KEPT + high]
    error, weight = sums[BINS + high] * left + sums[ERROR + high], sums[high] * left + sums[WEIGHT + high]
    value = confidence + (below + share * error / (weight + PRIOR_WEIGHT))
    if value >= CEILING:
        return CEILING
    return value if value > FLOOR else FLOOR


@kernel
def bin_below(confidence: float) -> tuple[int, float]:
    """Return the bin whose centre is the last below the confidence, and the share in it of the bin above."""
    place = confidence * BINS - 0.5
    place = BINS - 1.0 if place >= BINS - 1.0 else place if place > 0.0 else 0.0
    low = BINS - 2 if place >= BINS - 1.0 else int(place)
    return low, place - low
