"""Price the rows and the drafting of trees at the pace of a verifier's sequences."""

from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import Final

from app.engine.step_costs import StepCosts
from app.messages import LEAST_SURVIVAL
from app.round_observer import VerifiedRound
from app.state import Sequence

DECAY = 0.97  # of the past at a step


@dataclass(frozen=True, slots=True)
class Price:
    least_survival: float  # of a node that is worth its row
    pace: float  # tokens/s of all that wait for the drafts, for each sequence asked


UNPRICED: Final = Price(LEAST_SURVIVAL, 0.0)


class RowPrice:
    """The pace is the measured one: with it lengths and breadths rise to those of the best pace, as in Dinkelbach's
    method for quotients. An expected pace that is too high would end drafts, and never be seen to be wrong.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._tokens = self._seconds = 0.0  # of rounds, sequence by sequence

    def update(self, rounds: Iterable[VerifiedRound], now_s: float) -> None:
        """Learn from verdicts, before the sequences have their time."""
        tokens, seconds = 0, 0.0
        for r in rounds:
            if r.sequence.last_token_s:
                tokens += len(r.tokens)
                seconds += now_s - r.sequence.last_token_s
        if seconds > 0.0:  # else the clock was set back
            self._tokens = DECAY * self._tokens + tokens
            self._seconds = DECAY * self._seconds + seconds

    def of(self, asked: Listed[tuple[Sequence, int]], sequences: int) -> Price:
        """Return the price for sequences with the tokens that they ask for, among all that go on."""
        costs, nodes = self._costs, sum(tokens for _, tokens in asked)
        rows = sequences + nodes
        row_s = (costs.seconds(rows + nodes) - costs.seconds(rows)) / nodes
        row_s += costs.reading.row_token_s * max(sequence.cached for sequence, _ in asked)
        pace = self._tokens / self._seconds if self._seconds else 1.0 / costs.seconds(sequences)
        return Price(min(1.0, sequences * pace * row_s), pace * sequences / len(asked))
