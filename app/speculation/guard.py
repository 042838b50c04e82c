"""Compare ways of drafting, and plain decoding, by what their rounds were seen to take and to bring.

A round's seconds are expected from the costs of steps and drafts, its tokens from acceptance. How many times as long
its tokens take (messages, the host, steps of prompts alone, second guesses) is learnt by way. A way that was never
taken is believed to take what is expected, so it is taken where it would be the best; one that was found slower is
tried again now and then.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

MIN_GAIN = 1.02  # least expected pace over that of a simpler way: costs and chances are estimates
FIRST_SHARE = 0.1  # of the time since a way was taken, that its first trial under a load may lose;
SHARE = 0.01  # each further one a fourth of that, down to this
TRIAL_ROUNDS = 3  # in the first drafters read, in the second catch up, and the third shows what drafts take
BELIEVED = 4.0  # rounds that count as if a way took what is expected
DECAY = 0.97  # of a way's past with each of its rounds
MOST = 4.0  # times the expected seconds, that a round counts for at most: a pause of the machine tells of no way


class Way(Enum):
    PLAIN = "no drafts"
    MODEL_FREE = "model-free drafters"
    MODELS = "models"


@dataclass(slots=True)
class _Seen:
    took_s: float = 0.0
    expected_s: float = 0.0  # for as many tokens
    round_s: float = 1.0  # of the last round, expected
    since_s: float = 0.0  # of rounds of other ways since the last one
    shares: dict[int, float] = field(default_factory=dict)  # of that, which the next trial may lose, by load
    trials_s: dict[int, float] = field(default_factory=dict)  # that the last trial took, by load

    @property
    def slowdown(self) -> float:
        believed_s = BELIEVED * self.round_s
        return (self.took_s + believed_s) / (self.expected_s + believed_s)


@dataclass(slots=True)
class _Round:
    way: Way
    requests: set[str]
    expected_s: float  # 0: not known
    expected_tokens: float  # of a sequence
    began_s: float
    is_trial: bool
    prompts_s: float = 0.0


class Guard:
    def __init__(self) -> None:
        self._ways = {way: _Seen() for way in Way}
        self._load = 0  # sequences, by the number of bits
        self._round: _Round | None = None
        self._last: _Round | None = None
        self._ended_s = 0.0  # when that did
        self._trial: Way | None = None
        self._trial_rounds = 0  # left

    def slowdown(self, way: Way) -> float:
        """Return the seconds of this way's rounds over those expected for as many tokens."""
        return self._ways[way].slowdown

    def follow(self, sequences: int) -> None:
        self._load = sequences.bit_length()

    def is_due(self, way: Way, trial_s: float, best_s: float) -> bool:
        """Tell whether a way is tried that is not expected to be the best.

        A trial is expected to take `trial_s`, and takes no less than the last one did; its tokens take `best_s`
        otherwise.
        """
        if self._trial_rounds:
            return self._trial is way
        seen = self._ways[way]
        loss_s = max(trial_s, seen.trials_s.get(self._load, 0.0)) - best_s
        return loss_s <= seen.shares.get(self._load, FIRST_SHARE) * seen.since_s

    def begin(
        self,
        way: Way,
        requests: Collection[str],
        expected_s: float,
        now_s: float,
        *,
        tokens: float = 1.0,
        is_trial: bool = False,
    ) -> None:
        """Begin a round of these requests, unless others still wait for theirs.

        `now_s`: monotonic. `tokens`: that each is expected to commit.
        """
        if self._round is not None:
            return
        if not is_trial:
            self._trial_rounds = 0
        elif self._trial_rounds and self._trial is way:
            self._trial_rounds -= 1
        else:
            self._trial, self._trial_rounds = way, TRIAL_ROUNDS - 1
            seen = self._ways[way]
            seen.shares[self._load] = max(SHARE, seen.shares.get(self._load, FIRST_SHARE) / 4.0)
            seen.trials_s[self._load] = 0.0
        last = self._last
        if last is None or last.way is not way:
            expected_s = 0.0  # drafters catch up
        began_s = now_s if last is None or last.requests.isdisjoint(requests) else self._ended_s
        self._round = _Round(way, set(requests), expected_s, tokens, began_s, is_trial)

    def add_prompts(self, seconds: float) -> None:
        """Leave out what prompts take anyway of the round under way."""
        if self._round is not None:
            self._round.prompts_s += seconds

    @property
    def size(self) -> int:
        """Return the sequences of the round under way."""
        return len(self._round.requests) if self._round is not None else 0

    def end(self, tokens: Mapping[str, int], now_s: float) -> None:
        """End the round under way if it is one of these requests, which commit so many tokens, and learn of it."""
        last = self._round
        if last is None or last.requests.isdisjoint(tokens):
            return
        self._round, self._last, self._ended_s = None, last, now_s
        took_s = now_s - last.began_s
        for way, seen in self._ways.items():
            seen.since_s = 0.0 if way is last.way else seen.since_s + took_s
        own, net_s = self._ways[last.way], max(0.0, took_s - last.prompts_s)
        if last.is_trial:
            own.trials_s[self._load] = own.trials_s.get(self._load, 0.0) + net_s
        if last.expected_s:
            each = [count for request_id, count in tokens.items() if request_id in last.requests]
            part = sum(each) / len(each) / last.expected_tokens  # of the expected tokens
            own.took_s = DECAY * own.took_s + min(net_s, MOST * last.expected_s)
            own.expected_s, own.round_s = DECAY * own.expected_s + part * last.expected_s, last.expected_s

    def remove(self, request_id: str) -> None:
        if self._round is not None:
            self._round.requests.discard(request_id)
            if not self._round.requests:
                self._round = None

    def stop(self) -> None:
        """Forget the round under way: nothing was decided for the next one."""
        self._round = self._last = None
