"""Go on without drafts for some rounds before lengths are planned again: planning takes the host's time."""

from math import inf

SHARE = 0.01  # of the time between two plans, that planning takes where neither asks for drafts


class PlainSpell:
    def __init__(self) -> None:
        self._until_s = -inf
        self._plan_s = inf  # of the last plan without drafts
        self._sequences = 0
        self._round_s = 0.0

    def lasts(self, now_s: float) -> bool:
        return now_s < self._until_s

    def round_s(self, sequences: int) -> float:
        """Return the seconds that a round is expected to take; 0 where their number has changed."""
        return self._round_s if sequences == self._sequences else 0.0

    def begin(self, sequences: int, round_s: float, plan_s: float, now_s: float) -> None:
        """Begin behind a plan without drafts that took `plan_s` of its thread. `now_s`: monotonic.

        The lesser of two plans' times counts: a pause of the machine in one makes no long spell.
        """
        self._until_s, self._plan_s = now_s + min(plan_s, self._plan_s) / SHARE, plan_s
        self._sequences, self._round_s = sequences, round_s
