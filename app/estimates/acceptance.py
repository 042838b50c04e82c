"""How many of a sequence's next draft tokens will be right: acceptance by depth, learnt from what came.

A sequence leans on its tenant's mean while it has little evidence of its own, the tenant on a constant.
Tenants share nothing (D9). Verdicts compare the *uncut* tree with what came, so a sequence learns even from
nodes not verified.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import mul

from app.state import Tree

MAX_DEPTH = 16  # deeper ones are expected to go as this one
START = 0.6  # conditional acceptance before anything is known: high enough to try
PRIOR_WEIGHT = 4.0  # observations the tenant's mean counts for in a sequence
SEQUENCE_DECAY = 0.9  # of a depth's past at a new observation: a sequence remembers about 10 rounds,
TENANT_DECAY = 0.99  # a tenant 100
SILENT_DECAY = 0.98  # of a sequence's own past with each silent round: it drifts to its tenant's mean
FIRST_PROBE_ROUNDS = 6  # silent rounds before a sequence has a token drafted to see whether asking would pay again,
MAX_PROBE_ROUNDS = 256  # doubled each time until it asks of its own accord, a quarter of it when all was right

_STARTS = [START] * MAX_DEPTH


class AcceptanceEstimate:
    """Conditional acceptance by depth, and how long this sequence has been silent. No `prior`: a tenant's."""

    __slots__ = ("_accepted", "_decay", "_known", "_known_priors", "_prior", "_probe_rounds", "_seen", "silent_rounds")

    def __init__(self, prior: "AcceptanceEstimate | None" = None) -> None:
        self._prior = prior
        self._decay = SEQUENCE_DECAY if prior else TENANT_DECAY
        self._accepted = [0.0] * MAX_DEPTH
        self._seen = [0.0] * MAX_DEPTH
        self._known: list[float] = []  # of `_conditionals`, which is asked several times a round; empty: to be made
        self._known_priors: list[float] = []  # with which it was
        self._probe_rounds = FIRST_PROBE_ROUNDS
        self.silent_rounds = 0  # since the last ask; 0: it asked in its last round

    def survival(self, depth: int) -> list[float]:
        """Probability that the draft tokens at depth 1 ... `depth` and all before each are right."""
        known = self._conditionals()
        return [*accumulate(known[:depth] + known[-1:] * (depth - len(known)), mul)]

    def update(self, offered: int, accepted: int) -> None:
        """A draft offered `offered` levels, `accepted` of them were right; the rest says nothing."""
        for i in range(min(offered, accepted + 1, MAX_DEPTH)):
            self._accepted[i] = self._accepted[i] * self._decay + (i < accepted)
            self._seen[i] = self._seen[i] * self._decay + 1.0
        self._known = []
        if accepted >= offered > 0:
            self._probe_rounds = max(FIRST_PROBE_ROUNDS, self._probe_rounds // 4)
        if self._prior:
            self._prior.update(offered, accepted)

    def update_from_tree(self, tree: Tree, committed: Sequence[int]) -> None:
        """Observe the whole tree; `committed` are the tokens after its root."""
        self.update(*levels(tree, committed))

    def update_from_part(self, tree: Tree, committed: Sequence[int], drafters: Collection[str]) -> None:
        """Observe the part of the tree that these drafters proposed; no node at all is as good as a wrong one."""
        offered, accepted = levels(tree.of(frozenset(drafters)), committed)
        self.update(max(1, offered), accepted)

    def record_asked(self, draft_tokens: int, is_probe: bool = False) -> None:
        """The sequence asked for so many draft tokens this round, or probed; 0 is a silent round."""
        if draft_tokens:
            self._probe_rounds = min(MAX_PROBE_ROUNDS, 2 * self._probe_rounds) if is_probe else FIRST_PROBE_ROUNDS
        self.silent_rounds = 0 if draft_tokens else self.silent_rounds + 1
        if not draft_tokens:
            self._accepted = [value * SILENT_DECAY for value in self._accepted]
            self._seen = [value * SILENT_DECAY for value in self._seen]
            self._known = []

    @property
    def is_probing(self) -> bool:
        """Has it been silent for so long that it should see whether that is still right?"""
        return self.silent_rounds >= self._probe_rounds

    def _conditionals(self) -> list[float]:
        """By depth, the chance of a token if all before it are right."""
        priors = self._prior._conditionals() if self._prior else _STARTS
        if not self._known or self._known_priors is not priors:
            self._known_priors = priors
            self._known = [
                (accepted + PRIOR_WEIGHT * prior) / (seen + PRIOR_WEIGHT)
                for accepted, seen, prior in zip(self._accepted, self._seen, priors, strict=True)
            ]
        return self._known


class AcceptanceEstimates:
    """The expectations of all requests of a process; bounded, least recently used first."""

    def __init__(self, max_requests: int = 4096, max_tenants: int = 1024) -> None:
        self._max_requests, self._max_tenants = max_requests, max_tenants
        self._requests: OrderedDict[str, AcceptanceEstimate] = OrderedDict()
        self._tenants: OrderedDict[str, AcceptanceEstimate] = OrderedDict()

    def of(self, request_id: str, tenant: str) -> AcceptanceEstimate:
        """The request's expectation, made on first use."""
        if request_id not in self._requests:
            prior = _kept(self._tenants, tenant, self._max_tenants)
            self._requests[request_id] = AcceptanceEstimate(prior)
        return _kept(self._requests, request_id, self._max_requests)

    def remove(self, request_id: str) -> None:
        """The request is over; its tenant keeps what was learnt."""
        self._requests.pop(request_id, None)


def levels(tree: Tree, committed: Sequence[int]) -> tuple[int, int]:
    """Count (offered, accepted) on a tree's main branch: the nodes that `committed` can judge, and
    those before the first wrong one. Side branches do not count: draft lengths are priced as chains."""
    main = tree.main_branch()
    accepted = 0
    for node, token in zip(main, committed, strict=False):
        if tree.tokens[node - 1] != token:
            break
        accepted += 1
    return min(len(main), len(committed), accepted + 1), accepted


def _kept(kept: OrderedDict[str, AcceptanceEstimate], key: str, limit: int) -> AcceptanceEstimate:
    """The entry, made if need be, as the most recently used one of at most `limit`."""
    found = kept.get(key)
    if found is None:
        found = kept[key] = AcceptanceEstimate()
    kept.move_to_end(key)
    while len(kept) > limit:
        kept.popitem(last=False)
    return found
