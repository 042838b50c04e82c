"""Estimate each drafter's acceptance on a new request, by what came of it on the tenant's requests before.

Outcomes of requests go in, priors come out. All verifiers and restarts share them
(`app.store.shared_stats`); tenants share nothing (design D9). Any thread may call.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from app.state import Change

GROUP = "drafters:"  # of the store's sums, and the tenant
START = 0.5  # acceptance of a drafter before anything is known of any
PRIOR_WEIGHT = 8.0  # tokens tried that the mean of all drafters counts for in one's mean
DECAY = 0.99  # of a drafter's past with each new request
MAX_TRIES = 8.0  # of one report that count: else a drafter's best prompts would outweigh all others
MAX_TENANTS = 64  # least recently used first; they come back from the store
ALL = "*"  # the drafter that stands for all


class Prior(NamedTuple):
    """The acceptance to expect of a drafter: the chance that a token is right if its parents are."""

    acceptance: float
    tries: float  # the tokens tried that this rests on, divided by PRIOR_WEIGHT


class DrafterPriors:
    """The priors of each tenant, from its requests' outcomes.

    Implements `app.store.shared_stats.SharedStats`.
    """

    def __init__(self, max_tenants: int = MAX_TENANTS) -> None:
        self._tenants: OrderedDict[str, dict[str, _Sum]] = OrderedDict()  # and by drafter
        self._max_tenants = max_tenants
        self._lock = threading.Lock()

    def priors(self, tenant: str, drafters: Iterable[str]) -> dict[str, Prior]:
        """Return the priors by drafter; one without any outcome starts at the others' mean."""
        with self._lock:
            sums = self._of(tenant)
            mean = _rate(sums.get(ALL), START)
            found = {drafter: sums.get(drafter) for drafter in drafters}
            return {
                drafter: Prior(mean, 0.0) if own is None else Prior(_rate(own, mean), own.now()[1] / PRIOR_WEIGHT)
                for drafter, own in found.items()
            }

    def add(self, tenant: str, outcomes: Mapping[str, tuple[float, float]]) -> None:
        """Add each drafter's (right, tried) draft tokens on a request."""
        with self._lock:
            sums = self._of(tenant)
            for drafter, (right, tries) in outcomes.items():
                part = min(1.0, MAX_TRIES / max(tries, 1.0))
                _at(sums, drafter).add(right * part, tries * part, DECAY)
                _at(sums, ALL).add(right * part, tries * part, 1.0)

    def groups(self) -> list[str]:
        """Name a group for each tenant (see `SharedStats`)."""
        with self._lock:
            return [GROUP + tenant for tenant in self._tenants]

    def changes(self, group: str) -> dict[str, Change]:
        """Take what a tenant's requests added since the last call (see `SharedStats`)."""
        with self._lock:
            sums = self._of(group.removeprefix(GROUP))
            return {drafter: own.take() for drafter, own in sums.items() if own.is_changed}

    def absorb(self, group: str, sums: Mapping[str, Sequence[float]]) -> None:
        """Take over a tenant's sums as the store has them (see `SharedStats`)."""
        with self._lock:
            known = self._of(group.removeprefix(GROUP))
            for field, vector in sums.items():
                if len(vector) == 2:
                    _at(known, field).base = (vector[0], vector[1])

    def _of(self, tenant: str) -> "dict[str, _Sum]":
        sums = self._tenants.setdefault(tenant, {})
        self._tenants.move_to_end(tenant)
        while len(self._tenants) > self._max_tenants:
            self._tenants.popitem(last=False)
        return sums


class _Sum:
    """The tokens right and tried: as the store has them, and those added since."""

    __slots__ = ("base", "kept", "right", "tries")

    def __init__(self) -> None:
        self.base = (0.0, 0.0)
        self.right, self.tries, self.kept = 0.0, 0.0, 1.0

    @property
    def is_changed(self) -> bool:
        return self.tries > 0.0

    def now(self) -> tuple[float, float]:
        return self.base[0] * self.kept + self.right, self.base[1] * self.kept + self.tries

    def add(self, right: float, tries: float, decay: float) -> None:
        self.right, self.tries = self.right * decay + right, self.tries * decay + tries
        self.kept *= decay

    def take(self) -> Change:
        change: Change = ([self.kept] * 2, [self.right, self.tries])
        self.base = self.now()
        self.right, self.tries, self.kept = 0.0, 0.0, 1.0
        return change


def _at(sums: dict[str, _Sum], drafter: str) -> _Sum:
    found = sums.get(drafter)
    if found is None:
        found = sums[drafter] = _Sum()
    return found


def _rate(own: _Sum | None, mean: float) -> float:
    """Return the acceptance, with `mean` as prior."""
    right, tries = own.now() if own else (0.0, 0.0)
    return (right + PRIOR_WEIGHT * mean) / (tries + PRIOR_WEIGHT)
