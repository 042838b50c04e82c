"""Decide how much of which prompts a verifier step reads: a pure function of the sequences, the policy and the costs.

A row of a long context takes many times what one of a short context does, so rows are counted by their time. No step
is held up longer by prompts than reading `prefill_chunk_tokens` without any context takes, and where others decode, a
prompt that takes longer than that takes only so much of each step that theirs go on at a bounded share of their pace.
"""

from collections.abc import Sequence as Listed

from app.estimates.step_costs import StepCosts
from app.policy import Policy
from app.state import BatchEntry, Sequence

BESIDE = 2.0  # a long prompt takes so many times of a step what those that decode beside it take
LEAST_TOKENS = 8  # of a prompt in a step, whatever they take: each has the whole of its context read
INSTANT_S = 1e-9  # a row takes no less


def split_prefill(
    prompts: Listed[Sequence], max_tokens: int, costs: StepCosts, policy: Policy, running_s: float = 0.0
) -> list[BatchEntry]:
    """The chunks of the step, of at most `max_tokens` and `prefill_chunk_tokens` together, oldest prompt first.

    Half goes to the first of `prompts`, one or more, which come oldest first, so that every one is read some day; the
    rest to those with the fewest tokens left, so that a short one behind a long one is read at once. `running_s` is
    what a step of those that decode would take alone; 0 if there are none.
    """
    chunk_tokens = min(max_tokens, policy.prefill_chunk_tokens)
    room = _Room(chunk_tokens, costs, policy, running_s)
    if len(prompts) > 1:
        room.give(prompts[0], max(LEAST_TOKENS, chunk_tokens // 2), 0.5)
    for sequence in sorted(prompts, key=lambda s: s.uncached):  # stable: of equal ones the oldest
        room.give(sequence, chunk_tokens)
    return [s.entry(s.cached + room.given[s.record.id]) for s in prompts if room.given.get(s.record.id)]


class _Room:
    """What is left of a step for prompts: tokens and seconds, and of these, seconds for long prompts."""

    def __init__(self, tokens: int, costs: StepCosts, policy: Policy, running_s: float) -> None:
        size = policy.prefill_chunk_tokens
        self.given: dict[str, int] = {}
        self._row_s = max(INSTANT_S, (costs.seconds(1 + size) - costs.seconds(1)) / size)
        self._reading = costs.reading
        self._chunk_s = self._s = size * self._row_s
        self._long_s = min(self._s, BESIDE * running_s) if running_s else self._s
        self._tokens = tokens

    def give(self, sequence: Sequence, most: int, part: float = 1.0) -> None:
        """As much as there is, `most` tokens and `part` of the seconds left at most; at least LEAST_TOKENS to the first
        that comes, and to the others if there is time for these."""
        given = self.given.get(sequence.record.id, 0)
        left = sequence.uncached - given
        row_s = self._row_s + sequence.cached * self._reading.row_token_s
        once_s = 0.0 if given else sequence.cached * self._reading.token_s
        is_long = sequence.uncached * row_s + once_s > self._chunk_s
        room_s = part * min(self._s, self._long_s if is_long else self._s)
        count = int((room_s - once_s) / row_s * (1.0 + 1e-9))  # what just fits does
        if count < min(left, LEAST_TOKENS):
            count = 0 if self.given else LEAST_TOKENS
        count = min(count, left, most, self._tokens)
        if count <= 0:
            return
        self.given[sequence.record.id] = given + count
        self._tokens -= count
        took_s = count * row_s + once_s
        self._s -= took_s
        self._long_s -= took_s if is_long else 0.0
