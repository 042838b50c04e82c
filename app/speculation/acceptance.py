"""Estimate how many of a sequence's next draft tokens will be right: acceptance by depth.

A sequence starts from its tenant's mean; tenants share nothing (design D9). The uncut tree is compared with the
committed tokens, so a sequence learns from nodes that were not verified, too. For one thread.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from app.state import Tree

MAX_DEPTH = 16  # deeper tokens are expected to fare as those at this depth
START = 0.6  # conditional acceptance before anything is known: high enough to try
PRIOR_WEIGHT = 4.0  # observations the tenant's mean counts for in a sequence
SEQUENCE_DECAY = 0.9  # of the past at a new draft, at all depths: a sequence remembers about 10 rounds,
TENANT_DECAY = 0.99  # a tenant 100

MOST_WEIGHT = 1e100  # sums are made small again beyond it

_STARTS = [START] * MAX_DEPTH


class AcceptanceEstimate:
    """A sequence's conditional acceptance by depth; without a `prior` a tenant's."""

    __slots__ = (
        "_accepted",
        "_decay",
        "_known",
        "_known_priors",
        "_prior",
        "_seen",
        "_survival",
        "_weight",
    )

    def __init__(self, prior: "AcceptanceEstimate | None" = None) -> None:
        self._prior = prior
        self._decay = SEQUENCE_DECAY if prior else TENANT_DECAY
        self._weight = 1.0  # of the last draft in these sums: it grows, so that the past need not be made smaller
        self._accepted = [0.0] * MAX_DEPTH
        self._seen = [0.0] * MAX_DEPTH
        self._known: list[float] = []  # of `_conditionals`, which is read several times a round; empty: none is valid
        self._known_priors: list[float] = []  # the prior's that `_known` was made with
        self._survival: list[float] = []  # of `_known`, as deep as it was asked for

    def survival(self, depth: int) -> list[float]:
        """Return the chance that all tokens up to depths 1 ... `depth` are right."""
        known = self._conditionals(min(depth, MAX_DEPTH))
        if depth > len(self._survival):
            self._survival = [*accumulate(known[:depth] + known[-1:] * (depth - len(known)), mul)]
        return self._survival[:depth]

    def update(self, drafted: int, accepted: int) -> None:
        """Learn from a draft of `drafted` levels, the first `accepted` of which were right; the prior learns the same.

        Depths that are no longer asked for are forgotten with the rest: an unlucky first draft is no reason to ask for
        short ones for ever.
        """
        if self._weight > MOST_WEIGHT:
            self._accepted, self._seen = (
                [value / self._weight for value in own] for own in (self._accepted, self._seen)
            )
            self._weight = 1.0
        weight = self._weight = self._weight / self._decay
        known = min(drafted, MAX_DEPTH)
        first_wrong = min(accepted, known)
        for i in range(first_wrong):
            self._accepted[i] += weight
            self._seen[i] += weight
        if first_wrong < known:
            self._seen[first_wrong] += weight
        self._known = []
        if self._prior:
            self._prior.update(drafted, accepted)

    def _conditionals(self, depth: int) -> list[float]:
        priors = self._prior._conditionals(depth) if self._prior else _STARTS
        if len(self._known) < depth or self._known_priors is not priors:
            self._known_priors, self._survival = priors, []
            believed = PRIOR_WEIGHT * self._weight
            self._known = [
                (accepted + believed * prior) / (seen + believed)
                for accepted, seen, prior in zip(self._accepted[:depth], self._seen, priors, strict=False)
            ]
        return self._known


class AcceptanceEstimates:
    def __init__(self, max_requests: int = 4096, max_tenants: int = 1024) -> None:
        self._max_requests, self._max_tenants = max_requests, max_tenants
        self._requests: OrderedDict[str, AcceptanceEstimate] = OrderedDict()
        self._tenants: OrderedDict[str, AcceptanceEstimate] = OrderedDict()

    def of(self, request_id: str, tenant: str) -> AcceptanceEstimate:
        found = self._requests.get(request_id)
        if found is not None:
            self._requests.move_to_end(request_id)
            return found
        prior = _kept(self._tenants, tenant, self._max_tenants)
        self._requests[request_id] = AcceptanceEstimate(prior)
        return _kept(self._requests, request_id, self._max_requests)

    def remove(self, request_id: str) -> None:
        self._requests.pop(request_id, None)


def levels(tree: Tree, committed: Sequence[int]) -> tuple[int, int]:
    """Count (drafted, accepted) on a tree's main branch, as far as `committed` reaches.

    Side branches do not count: draft lengths are priced as chains.
    """
    main = tree.tokens if tree.is_chain else [tree.tokens[node - 1] for node in tree.main_branch()]
    accepted = 0
    for drafted, token in zip(main, committed, strict=False):
        if drafted != token:
            break
        accepted += 1
    return min(len(main), len(committed), accepted + 1), accepted


def _kept(kept: OrderedDict[str, AcceptanceEstimate], key: str, limit: int) -> AcceptanceEstimate:
    found = kept.get(key)
    if found is None:
        found = kept[key] = AcceptanceEstimate()
    kept.move_to_end(key)
    while len(kept) > limit:
        kept.popitem(last=False)
    return found
