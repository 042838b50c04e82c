"""Estimate each drafter's acceptance on a prompt, by the prompt's tokens, tenant by tenant.

Prompts and the outcomes of requests go in, priors come out. A cheap domain guess: the prompt's last
tokens fall into hashed buckets, and a request's outcome counts for all of its buckets. A new
prompt's prior for a drafter is a mean over its buckets; those that nearly every prompt has (the
chat template, "the") count for nothing, as in TF-IDF. All verifiers and restarts share it
(`app.store.shared_stats`); tenants share nothing (design D9). Any thread may call.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from math import log
from typing import NamedTuple
from zlib import crc32

from app.state import Change

GROUP = "experience:"  # of the store's sums, and the tenant
BUCKETS = 2048
LAST_TOKENS = 256  # of a prompt: its latest turn tells most about the answer
MAX_WORDS = 64  # buckets a prompt counts in
START = 0.5  # acceptance of a drafter before anything is known of any
PRIOR_WEIGHT = 8.0  # tokens tried that the mean of all drafters counts for in one's mean,
BUCKET_WEIGHT = 2.0  # and its mean in a bucket
BUCKET_DECAY = 0.9  # of a bucket's past with each new request in it,
TOTAL_DECAY = 0.99  # and of a drafter's
MAX_TRIES = 8.0  # of one report that count: else a drafter's best prompts would outweigh all others
MAX_TENANTS = 64  # least recently used first; they come back from the store
EVERY = "*"  # the field of all buckets, and the drafter that stands for all


class Prior(NamedTuple):
    """The acceptance to expect of a drafter: the chance that a token is right if its parents are."""

    acceptance: float
    tries: float  # the tokens tried that this rests on, for prompts like this one


class DrafterPriors:
    """The priors of each tenant, from its requests' outcomes.

    Implements `app.store.shared_stats.SharedStats`.
    """

    def __init__(self, max_tenants: int = MAX_TENANTS) -> None:
        self._tenants: OrderedDict[str, dict[str, _Sum]] = OrderedDict()
        self._max_tenants = max_tenants
        self._lock = threading.Lock()

    def priors(self, tenant: str, buckets: Sequence[int], drafters: Iterable[str]) -> dict[str, Prior]:
        """Return the priors by drafter; one without any outcome starts at the others' mean."""
        with self._lock:
            sums = self._of(tenant)
            mean = _rate(sums.get(_field(EVERY, EVERY)), START, PRIOR_WEIGHT)
            if _field(EVERY, EVERY) not in sums:  # evicted, or nothing known
                return dict.fromkeys(drafters, Prior(mean, 0.0))
            return {drafter: _prior(sums, buckets, drafter, mean) for drafter in drafters}

    def add(self, tenant: str, buckets: Sequence[int], outcomes: Mapping[str, tuple[float, float]]) -> None:
        """Add each drafter's (right, tried) draft tokens on a prompt with these buckets."""
        with self._lock:
            sums = self._of(tenant)
            for drafter, (right, tries) in outcomes.items():
                part = min(1.0, MAX_TRIES / max(tries, 1.0))
                right, tries = right * part, tries * part
                _at(sums, _field(EVERY, drafter)).add(right, tries, TOTAL_DECAY)
                _at(sums, _field(EVERY, EVERY)).add(right, tries, 1.0)
                for bucket in buckets:
                    _at(sums, _field(bucket, drafter)).add(right, tries, BUCKET_DECAY)
                    _at(sums, _field(bucket, EVERY)).add(right, tries, 1.0)

    def groups(self) -> list[str]:
        """Name a group for each tenant (see `SharedStats`)."""
        with self._lock:
            return [GROUP + tenant for tenant in self._tenants]

    def changes(self, group: str) -> dict[str, Change]:
        """Take what a tenant's requests added since the last call (see `SharedStats`)."""
        with self._lock:
            sums = self._of(group.removeprefix(GROUP))
            return {field: own.take() for field, own in sums.items() if own.is_changed}

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


def buckets_of(prompt: Sequence[int]) -> tuple[int, ...]:
    """Hash a prompt's last tokens into buckets.

    Of many, those with the least hash are kept, so that all prompts drop the same tokens.
    """
    hashes = sorted({crc32(token.to_bytes(4, "little")) for token in prompt[-LAST_TOKENS:]})
    return tuple({value % BUCKETS: None for value in hashes[:MAX_WORDS]})


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


def _field(bucket: int | str, drafter: str) -> str:
    return f"{bucket}:{drafter}"


def _at(sums: dict[str, _Sum], field: str) -> _Sum:
    found = sums.get(field)
    if found is None:
        found = sums[field] = _Sum()
    return found


def _rate(own: _Sum | None, mean: float, weight: float) -> float:
    """Return the acceptance, with `mean` as prior of this weight."""
    right, tries = own.now() if own else (0.0, 0.0)
    return (right + weight * mean) / (tries + weight)


def _prior(sums: Mapping[str, _Sum], buckets: Sequence[int], drafter: str, mean: float) -> Prior:
    """Take a mean over the prompt's buckets, those weighing most that few prompts have.

    In a bucket where this drafter was never asked, its overall rate counts for half: a drafter is
    asked mostly where it is good.
    """
    overall = sums.get(_field(EVERY, drafter))
    if overall is None:
        return Prior(mean, 0.0)
    rate, total = _rate(overall, mean, PRIOR_WEIGHT), sums[_field(EVERY, EVERY)].now()[1]
    elsewhere = (rate + START) / 2.0
    weights, value, tries = 1.0, rate, overall.now()[1] / PRIOR_WEIGHT
    for bucket in buckets:
        of_all = sums.get(_field(bucket, EVERY))
        seen = of_all.now()[1] if of_all else 0.0
        if 0.0 < seen < total:
            own, weight = sums.get(_field(bucket, drafter)), log(total / seen)
            weights += weight
            value += weight * _rate(own, elsewhere, BUCKET_WEIGHT)
            tries += weight * (own.now()[1] if own else 0.0)
    return Prior(value / weights, tries / weights)
