"""Route each sequence's next round: to which drafters, and at which of their nodes.

The state around a routing strategy: scores, the nodes that have read a sequence, routes in use.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple
from zlib import crc32

from app.messages import FUSE, Record
from app.speculation.drafter_pool import DrafterPool
from app.speculation.drafter_priors import DrafterPriors
from app.speculation.route_scores import DrafterScores, RequestScores
from app.speculation.route_strategies import RoundLimits, RoundOptions, RoutingStrategy
from app.speculation.routing_policies import Option, outcomes
from app.state import Tree

Price = Callable[[str], float]  # mailbox -> cost of drafting there, in plain-decoding tokens
Terms = Callable[[], tuple[RoundLimits, Price]]  # worked out where there is a choice, and once then


Replica = tuple[str, bool]  # of a sequence: its mailbox, and whether it is the fuser's there or the drafter's


class Recipient(NamedTuple):
    """A mailbox that a round's job goes to, the drafters that the job names, and the replicas that its tokens reach."""

    mailbox: str
    drafters: tuple[str, ...]
    replicas: tuple[Replica, ...]


@dataclass(frozen=True)
class Route:
    """A round's drafters, the mailbox of each model drafter among them, and where the drafts are fused."""

    drafters: tuple[str, ...] = ()
    homes: Mapping[str, str] = field(default_factory=dict)
    fuser: str = FUSE
    is_choice: bool = False  # there were several model drafters to choose from

    def without_models(self, fuser: str) -> "Route":
        """Return the same route without its model drafters, fused at `fuser`."""
        return Route(tuple(name for name in self.drafters if name not in self.homes), {}, fuser)

    def away_from(self, nodes: Collection[str], pool: DrafterPool) -> "Route":
        """Return the same route without the drafters at these mailboxes."""
        homes = {name: box for name, box in self.homes.items() if box not in nodes}
        if not homes:
            return self.without_models(pool.alone)
        names = tuple(name for name in self.drafters if name in homes or name not in self.homes)
        return Route(names, homes, pool.fuser_of(set(homes.values())), self.is_choice)

    def only_at(self, node: str) -> "Route":
        """Return the route of its drafters at this mailbox alone, which fuses what they draft."""
        homes = {name: box for name, box in self.homes.items() if box == node}
        return Route(tuple(homes), homes, node)

    @cached_property
    def recipients(self) -> tuple[Recipient, ...]:
        """Return the mailboxes that get a job; the fuser's names all drafters."""
        found = {self.fuser: self.drafters}
        for box in self.homes.values():
            found.setdefault(box, tuple(name for name in self.drafters if self.homes.get(name) == box))
        boxes = {*self.homes.values()}
        return tuple(
            Recipient(box, names, ((box, True),) * (box == self.fuser) + ((box, False),) * (box in boxes))
            for box, names in found.items()
        )


class Router:
    """Choose drafters round by round and learn from the verdicts. One model drafter is no choice, and no cost."""

    def __init__(self, strategy: RoutingStrategy, most: int = 2) -> None:
        """Route by `strategy`, to at most `most` model drafters a sequence."""
        self.experience: Final = DrafterPriors()
        self.asked_rounds: Final = Counter[str]()  # by drafter, where there was a choice
        self._strategy = strategy
        self._most = most
        self._scores = DrafterScores(self.experience)
        self._homes: dict[str, dict[str, str]] = {}  # by request and drafter: the node that has read it
        self._requests_at: Counter[str] = Counter()  # by mailbox: requests at home there
        # By request, with the pool it was made for, and the length where there was a choice.
        self._routes: dict[str, tuple[int | None, DrafterPool, Route]] = {}
        self._model_free: dict[tuple[str, ...] | None, Route] = {}  # by the drafters that a request names,
        self._model_free_pool: DrafterPool | None = None  # of this pool

    def known(self, request_id: str, length: int, pool: DrafterPool) -> Route | None:
        """Return the request's route for the tokens after `length`; None: `route` is yet to find it."""
        known = self._routes.get(request_id)
        return known[2] if known and known[1] is pool and known[0] in (length, None) else None

    def model_free(self, names: tuple[str, ...] | None, pool: DrafterPool) -> Route:
        """Return the route without models of all requests that name these drafters."""
        if self._model_free_pool is not pool:
            self._model_free, self._model_free_pool = {}, pool
        found = self._model_free.get(names)
        if found is None:
            found = self._model_free[names] = Route(
                tuple(name for name in pool.allowed(names) if name not in pool.models), {}, pool.alone
            )
        return found

    def route(self, record: Record, length: int, pool: DrafterPool, terms: Terms) -> Route:
        """Route a request for the tokens after `length`, which is then `known` until the sequence has grown.

        Where there is no choice it is known for as long as the pool stays.
        """
        names = pool.allowed(record.speculation.drafters)
        models = [name for name in names if name in pool.models] if pool.models else []
        homes = {name: self._home(record.id, name, pool) for name in models}
        is_choice = len(models) > 1
        if is_choice:
            limits, price = terms()
            limits = replace(limits, depth=max(1, limits.depth), most=min(limits.most, self._most))
            chosen = set(self._chosen(record, homes, pool, limits, price))
            names = tuple(name for name in names if name in chosen or name not in homes)
            homes = {name: box for name, box in homes.items() if name in chosen}
        route = Route(names, homes, pool.fuser_of(set(homes.values())), is_choice)
        self._routes[record.id] = length if is_choice else None, pool, route
        return route

    def record_asked(self, record: Record, route: Route) -> None:
        """Record that the route's drafters were asked; the last ones, if they never answered, count as wrong."""
        if route.is_choice:
            scores = self._scores.of(record, route.homes)
            if scores.asked:
                scores.update(dict.fromkeys(scores.asked, (0, 1)), None)
            scores.asked = tuple(route.homes)
            for drafter in scores.asked:
                scores.by_drafter[drafter].rounds += 1
                self.asked_rounds[drafter] += 1

    def update(
        self, request_id: str, tree: Tree, committed: Sequence[int], confidence: Mapping[str, float] | None = None
    ) -> None:
        """Learn from `committed`, the tokens after the tree's root. `confidence`: each drafter's mean."""
        scores = self._scores.get(request_id)
        if scores is None or not scores.asked:
            return
        asked, scores.asked = scores.asked, ()
        if not asked:
            return
        found, length = outcomes(tree, committed, asked)
        scores.update(found, length + 1)
        self._strategy.rate(scores, tree, committed, {name: (confidence or {}).get(name, 0.0) for name in asked})
        if scores.is_to_report:
            self._scores.report(scores)

    @property
    def is_scoring(self) -> bool:
        """Tell whether any request has scores, so that verdicts on it teach something (`update`)."""
        return bool(self._scores)

    def remove(self, request_id: str) -> None:
        """Remove an ended request; what was learnt for its tenant stays."""
        self._routes.pop(request_id, None)
        self._requests_at.subtract(self._homes.pop(request_id, {}).values())
        self._scores.remove(request_id)

    def _chosen(
        self, record: Record, homes: Mapping[str, str], pool: DrafterPool, limits: RoundLimits, price: Price
    ) -> list[str]:
        scores = self._scores.of(record, homes)
        # Of equals, each request tries another one first; the same request always the same.
        order = sorted(homes, key=lambda name: (crc32(f"{record.id}:{name}".encode()), name))
        options = [_option(name, scores, price(homes[name]), pool.is_here(homes[name])) for name in order]
        return self._strategy.choose(RoundOptions(tuple(homes), options, scores.accepted_length, limits))

    def _home(self, request_id: str, drafter: str, pool: DrafterPool) -> str:
        """Return the node that drafts: where the drafter has read the sequence, if alive; else the least loaded."""
        boxes = pool.hosts_of(drafter)
        if len(boxes) == 1:
            return boxes[0]
        homes = self._homes.setdefault(request_id, {})
        home = homes.get(drafter)
        if home not in boxes:
            if home is not None:
                self._requests_at[home] -= 1
            home = min(boxes, key=lambda box: (pool.waiting.get(box, 0), self._requests_at[box]))
            homes[drafter] = home
            self._requests_at[home] += 1
        return home


def _option(name: str, scores: RequestScores, price: float, is_here: bool) -> Option:
    own = scores.by_drafter[name]
    return Option(name, own.acceptance, own.doubt, price, is_here, own.match, own.rounds, scores.is_expected(name))
