"""Score each drafter on each request, by recent verdicts and what came of the tenant's requests before.

Takes outcomes in tokens right and tried, and gives chances; chooses no drafter.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from app.messages import Record
from app.speculation.drafter_priors import DrafterPriors, Prior

DECAY = 0.95  # of a request's own past with each verdict: it remembers about 20 rounds
LENGTH_DECAY = 0.8  # of the recent accepted length
LEAST_WEIGHT, MOST_WEIGHT = 2.0, 8.0  # tokens tried that a prior counts for, by its own evidence
KNOWN_TRIES = 4.0  # tokens tried that a prior must rest on to be used
REPORT_TRIES = 32.0  # tokens tried after which a running request updates the priors
MATCH_RATE = 0.3  # of a new score in the routing matrix (CoSine; its rate is not known)
MATCH_START = 0.5


@dataclass(slots=True)
class Score:
    """Hold one drafter's score on one request: tokens right and tried, and CoSine's entry.

    `right` and `tries` decay; `new_right` and `new_tries` count since the last report.
    """

    prior: Prior
    right: float = 0.0
    tries: float = 0.0
    new_right: float = 0.0
    new_tries: float = 0.0
    match: float = MATCH_START
    rounds: int = 0  # in which it was asked

    @property
    def acceptance(self) -> float:
        """Return the chance that its next token is right if all before it were."""
        weight = self._weight
        return (self.right + weight * self.prior.acceptance) / (self.tries + weight)

    @property
    def doubt(self) -> float:
        """Return the standard deviation of that chance, as of a beta distribution."""
        p = min(0.95, max(0.05, self.acceptance))
        return sqrt(p * (1.0 - p) / (self.tries + self._weight + 1.0))

    @property
    def _weight(self) -> float:
        tries = self.prior.tries
        return LEAST_WEIGHT + (MOST_WEIGHT - LEAST_WEIGHT) * tries / (tries + MOST_WEIGHT)


@dataclass(slots=True)
class RequestScores:
    """Hold the scores of all drafters on one request."""

    tenant: str
    by_drafter: dict[str, Score] = field(default_factory=dict)
    asked: tuple[str, ...] = ()  # drafters asked in the round that has no verdict yet
    accepted_length: float | None = None  # of recent rounds, the target's own token included

    def update(self, outcomes: Mapping[str, tuple[int, int]], length: int | None) -> None:
        """Update the scores with a verdict: (right, tried) by drafter.

        `length`: the tokens that the round could have committed; None where that is not known.
        """
        if length is not None:
            last = float(length) if self.accepted_length is None else self.accepted_length
            self.accepted_length = LENGTH_DECAY * last + (1.0 - LENGTH_DECAY) * length
        for score in self.by_drafter.values():
            score.right, score.tries = score.right * DECAY, score.tries * DECAY
        for drafter, (right, tries) in outcomes.items():
            score = self.by_drafter[drafter]
            score.right, score.tries = score.right + right, score.tries + tries
            score.new_right, score.new_tries = score.new_right + right, score.new_tries + tries

    def is_expected(self, drafter: str) -> bool:
        """Tell whether the drafter's prior rests on enough requests."""
        return self.by_drafter[drafter].prior.tries >= KNOWN_TRIES

    def match(self, drafter: str, value: float) -> None:
        """Update the drafter's entry of CoSine's routing matrix."""
        score = self.by_drafter[drafter]
        score.match += MATCH_RATE * (value - score.match)

    def drain(self) -> dict[str, tuple[float, float]]:
        """Take (right, tried) by drafter since the last call."""
        found = {name: (s.new_right, s.new_tries) for name, s in self.by_drafter.items() if s.new_tries}
        for score in self.by_drafter.values():
            score.new_right = score.new_tries = 0.0
        return found

    @property
    def is_to_report(self) -> bool:
        """Tell whether there is enough new evidence to update the priors with."""
        return sum(score.new_tries for score in self.by_drafter.values()) >= REPORT_TRIES


class DrafterScores:
    """Hold the scores of all requests of a process; bounded, the oldest leave first."""

    def __init__(self, experience: DrafterPriors, max_requests: int = 4096) -> None:
        """Start from the priors of `experience`, and update them; hold at most `max_requests`."""
        self._experience = experience
        self._max_requests = max_requests
        self._requests: OrderedDict[str, RequestScores] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def of(self, record: Record, drafters: Iterable[str]) -> RequestScores:
        """Return the request's scores, with an entry for each of these drafters."""
        found = self._requests.get(record.id)
        if found is None:
            found = self._requests[record.id] = RequestScores(record.tenant)
            while len(self._requests) > self._max_requests:
                self.remove(next(iter(self._requests)))
        new = [drafter for drafter in drafters if drafter not in found.by_drafter]
        if new:
            priors = self._experience.priors(record.tenant, new)
            found.by_drafter.update({drafter: Score(prior) for drafter, prior in priors.items()})
        return found

    def get(self, request_id: str) -> RequestScores | None:
        """Return the request's scores; None if it was never routed."""
        return self._requests.get(request_id)

    def report(self, scores: RequestScores) -> None:
        """Update the priors with what is new."""
        self._experience.add(scores.tenant, scores.drain())

    def remove(self, request_id: str) -> None:
        """Remove an ended request; the priors keep what was learnt."""
        scores = self._requests.pop(request_id, None)
        if scores is not None:
            self.report(scores)


def harmonic(confidence: float, agreement: float) -> float:
    """Return CoSine's score of one round (papers 1.2: the form is known, its constants are not)."""
    total = confidence + agreement
    return 2.0 * confidence * agreement / total if total > 0.0 else 0.0


def same_tokens(drafted: Sequence[int], committed: Sequence[int]) -> float:
    """Return the share of positions at which the very token was committed.

    Both lists have the same length. This is agreement without an embedding.
    """
    return sum(a == b for a, b in zip(drafted, committed, strict=True)) / max(1, len(drafted))
