"""Decide how many model drafters a round asks: as many as bring most tokens a second (decision 33)."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Listed
from itertools import accumulate
from operator import mul

from app.speculation.acceptance import TENANT_DECAY
from app.speculation.guard import MIN_GAIN, SHARE, TRIAL_ROUNDS
from app.state import Tree

FIRST_EXPONENT = 0.2  # n drafters bring n ** 0.2 times the tokens of one, before any were seen,
FIRST_TOKENS = 16.0  # as if of rounds of so many: one request says little of the next


class DrafterCount:
    """Choose the number of drafters whose rounds bring most tokens a second, and put the best drafters first.

    A tree of n drafters shows the tokens of fewer. Trials, which ask all, show those of more.
    """

    def __init__(self) -> None:
        # By n from 2: tokens of rounds of n drafters or more, by the first n and by the first n - 1.
        self._tokens: list[tuple[float, float]] = []
        self._own: dict[str, float] = {}  # by drafter: tokens of rounds in which others were asked, too
        self._best = 0  # 0: all, since nothing is known
        self._trial_rounds = TRIAL_ROUNDS  # left
        self._untried_s = 0.0  # since the last trial

    def asked(self, most: int) -> int:
        """Return how many to ask of `most` that there are."""
        for n in range(len(self._tokens) + 2, most + 1):
            self._tokens.append((FIRST_TOKENS * (n / (n - 1)) ** FIRST_EXPONENT, FIRST_TOKENS))
        return most if self._trial_rounds else self.usual(most)

    def usual(self, most: int) -> int:
        """Return how many a round asks that is no trial; a trial is priced like it."""
        return min(most, self._best or most)

    def in_order(self, drafters: Iterable[str]) -> list[str]:
        return sorted(drafters, key=lambda name: -self._own.get(name, 0.0))

    def learn(self, drafters: Listed[str], tree: Tree, committed: Listed[int]) -> None:
        """Learn from a tree to which these drafters came, in the order of asking."""
        if len(drafters) < 2:
            return
        places = {name: place for place, name in enumerate(drafters, start=1)}
        proposers = [tree.proposers[node - 1] for node in tree.walk(committed).path]
        for name in drafters:
            alone = 1.0 + next((i for i, names in enumerate(proposers) if name not in names), len(proposers))
            self._own[name] = self._own.get(name, alone) * TENANT_DECAY + alone * (1.0 - TENANT_DECAY)
        # The drafters with which each right node is there; what no model drafts comes with the first.
        needed = [*accumulate((min(places.get(name, 1) for name in names) for names in proposers), max)]
        fewer = 1.0 + needed.count(1)
        for n, (own, others) in enumerate(self._tokens[: len(drafters) - 1], start=2):
            tokens = fewer + needed.count(n)
            self._tokens[n - 2] = own * TENANT_DECAY + tokens, others * TENANT_DECAY + fewer
            fewer = tokens

    def decide(self, seconds: Callable[[int], float]) -> None:
        """Decide after a round that models were asked for. `seconds(n)`: of one like it with n drafters."""
        self._trial_rounds = max(0, self._trial_rounds - 1)
        if self._trial_rounds:
            return
        gains = accumulate((own / others for own, others in self._tokens), mul, initial=1.0)
        paces = {n: gain / seconds(n) for n, gain in enumerate(gains, start=1)}
        most, best = max(paces), max(paces, key=paces.__getitem__)
        self._best = best if paces[best] > MIN_GAIN * paces[most] else most
        self._untried_s += seconds(self._best)
        loss_s = TRIAL_ROUNDS * seconds(most) * (1.0 - paces[most] / paces[self._best])
        if self._best < most and loss_s <= SHARE * self._untried_s:
            self._trial_rounds, self._untried_s = TRIAL_ROUNDS, 0.0
