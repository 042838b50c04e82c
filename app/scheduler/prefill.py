"""Decide how much of each prompt a step reads: a pure function of sequences, policy and costs.

Rows are counted by their time, which grows with the context. Prompts take at most that of a chunk without any context,
or of a step of one row. Where others decode, a longer prompt gets a bounded part of each step.
"""

from collections.abc import Sequence as Listed

from app.engine.step_costs import StepCosts
from app.policy import BATCH_TOKENS, Policy
from app.state import NO_PROMPTS, BatchEntry, Prompts, Sequence

BESIDE = 2.0  # a long prompt's time in a step, in times that of the sequences that decode beside it
CHEAPER = 0.9  # of a token's time, that twice the chunk must bring it down to
LEAST_TOKENS = 8  # of a prompt in a step, whatever they take: each chunk reads the whole context before it
INSTANT_S = 1e-9  # least time of a row


def chunk_tokens(costs: StepCosts, policy: Policy) -> int:
    """Return the most prompt tokens of a step: the policy's, doubled while that makes a token's time CHEAPER."""
    size = min(policy.prefill_chunk_tokens, policy.max_batch_tokens)
    while 2 * size <= policy.max_batch_tokens and costs.prompt_s(2 * size) <= 2.0 * CHEAPER * costs.prompt_s(size):
        size *= 2
    return size


def beside_of(policy: Policy) -> float:
    """Return the time of long prompts over that of what decodes beside them."""
    return BESIDE * max(1.0, policy.max_batch_tokens / BATCH_TOKENS)


def split_prefill(
    prompts: Listed[Sequence],
    max_tokens: int,
    size: int,
    costs: StepCosts,
    running_s: float = 0.0,
    beside: float = BESIDE,
) -> list[BatchEntry]:
    """Return the step's parts of prompts, of at most `max_tokens` and `size` tokens together, in the prompts' order.

    Half of the room goes to the first prompt, the rest to those with the fewest tokens left. `running_s`: a step of
    the decoding sequences alone; long prompts take `beside` times that.
    """
    most = min(max_tokens, size)
    room = _Room(most, size, costs, beside * running_s)
    if len(prompts) > 1:
        room.give(prompts[0], max(LEAST_TOKENS, most // 2), 0.5)
    for sequence in sorted(prompts, key=lambda s: s.uncached):  # stable: of equal ones the oldest
        room.give(sequence, most)
    return [s.chunk(s.cached + room.given[s.record.id]) for s in prompts if room.given.get(s.record.id)]


def prompts_of(prompts: Listed[Sequence], policy: Policy, costs: StepCosts, running_s: float) -> Prompts:
    if not prompts:
        return NO_PROMPTS
    size, beside = chunk_tokens(costs, policy), beside_of(policy)
    chunks = split_prefill(prompts, policy.max_batch_tokens, size, costs, running_s, beside)
    rows = [(work.start, len(work.tokens)) for work in chunks]
    count = sum(own for _, own in rows)
    seconds = costs.seconds(count, sum(work.silent for work in chunks)) + costs.reading.step_s(rows)
    return Prompts(count, seconds, sum(work.final for work in chunks))


class _Room:
    def __init__(self, tokens: int, size: int, costs: StepCosts, long_s: float) -> None:
        self.given: dict[str, int] = {}
        self._row_s = max(INSTANT_S, (costs.prompt_s(1 + size) - costs.seconds(1)) / size)
        self._reading = costs.reading
        self._chunk_s = self._s = max(size * self._row_s, costs.seconds(1))  # a GPU's rows cost next to nothing
        self._long_s = min(self._s, long_s) if long_s else self._s
        self._tokens = tokens

    def give(self, sequence: Sequence, most: int, part: float = 1.0) -> None:
        """Give a prompt at most `most` tokens and `part` of the seconds.

        The first one gets at least LEAST_TOKENS, and rows for as long as its context takes to be read; the others get
        LEAST_TOKENS if there is time.
        """
        given = self.given.get(sequence.record.id, 0)
        left = sequence.uncached - given
        row_s = self._row_s + sequence.cached * self._reading.row_token_s
        share = self._reading.share if self.given else 1.0  # of the time that a context takes alone
        once_s = 0.0 if given else sequence.cached * self._reading.token_s * share
        is_long = sequence.uncached * row_s + once_s > self._chunk_s
        room_s = part * min(self._s, self._long_s if is_long else self._s)
        rows_s = room_s - once_s if self.given else max(room_s - once_s, once_s)
        count = int(rows_s / row_s * (1.0 + 1e-9))  # the factor absorbs rounding
        if count < min(left, LEAST_TOKENS):
            count = 0 if self.given else LEAST_TOKENS
        count = min(count, left, most, self._tokens)
        if count <= 0:
            return
        self.given[sequence.record.id] = given + count
        self._tokens -= count
        took_s = min(count * row_s + once_s, room_s)  # what is beyond is not taken from the others
        self._s -= took_s
        self._long_s -= took_s if is_long else 0.0
