"""Route each sequence's next round to drafters and their nodes, and a request to its verifier."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from app.messages import FUSE, Record
from app.speculation.drafter_count import DrafterCount
from app.speculation.drafter_pool import DrafterPool
from app.state import Tree
from app.store.protocol import Node

SHORT = 2.0  # CoSine's tau: a recent accepted length, the target's own token included; its value is not known,
NEW_SHARE = 0.5  # nor that of its alpha, the part of drafters little tried while exploring,
BEST_SHARE = 0.8  # nor that of its beta, the part of the best ones while exploiting,
MATCH_RATE = 0.3  # nor the rate of a new score in the matrix
MATCH_START = 0.5
LENGTH_DECAY = 0.8  # of the recent accepted length
MAX_REQUESTS = 4096  # with a row in the matrix; the oldest leave first
Agreement = Callable[[Listed[int], Listed[int]], float]  # (drafted, committed) of equal length -> 0 ... 1


def verifier(live: Listed[Node], held: Mapping[str, int]) -> Node | None:
    """Choose the verifier that holds the fewest requests, by owner; None when none is alive.

    Heartbeats are half a second old: by them a burst would all go to one verifier.
    """
    return min(live, key=lambda node: (held.get(node.owner, 0), node.name), default=None)


def serving(live: Listed[Node], tokenizer_sha256: str, target: str = "") -> list[Node]:
    """List the verifiers with this tokenizer and target; one of another version may name neither."""
    return [
        node
        for node in live
        if node.info.get("tokenizer", tokenizer_sha256) == tokenizer_sha256
        and (not target or node.info.get("target", "") == target)
    ]


Replica = tuple[str, bool]  # of a sequence: its mailbox, and whether it is the fuser's there or the drafter's


class Recipient(NamedTuple):
    """A mailbox that a job goes to, its drafters there, and the replicas that its tokens reach."""

    mailbox: str
    drafters: tuple[str, ...]
    replicas: tuple[Replica, ...]


@dataclass(frozen=True)
class Route:
    """A round's drafters, the models' mailboxes, and where the drafts are fused."""

    drafters: tuple[str, ...] = ()
    homes: Mapping[str, str] = field(default_factory=dict)
    fuser: str = FUSE
    is_choice: bool = False  # there were several model drafters to choose from

    def without_models(self, fuser: str) -> "Route":
        return Route(tuple(name for name in self.drafters if name not in self.homes), {}, fuser)

    def away_from(self, nodes: Collection[str], pool: DrafterPool) -> "Route":
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


class RoutingStrategy(Protocol):
    @property
    def count(self) -> DrafterCount | None:
        """Return the rule for the number of drafters; None where no rule learns it."""
        ...

    @property
    def is_scoring(self) -> bool: ...

    def choose(self, request_id: str, homes: Mapping[str, str], pool: DrafterPool, most: int) -> Collection[str]:
        """Return the names of at most `most` drafters; `homes`: their mailboxes, in the pool's order."""
        ...

    def record_asked(self, request_id: str, drafters: Listed[str]) -> None: ...

    def update(
        self, request_id: str, tree: Tree, committed: Listed[int], confidence: Mapping[str, float] | None
    ) -> None:
        """Learn from `committed`, the tokens after the tree's root. `confidence`: each drafter's mean."""
        ...

    def remove(self, request_id: str) -> None: ...


class FixedRouting:
    def __init__(self, count: int | None = None) -> None:
        self._count = count

    @property
    def count(self) -> DrafterCount | None:
        return None

    @property
    def is_scoring(self) -> bool:
        return False

    def choose(self, request_id: str, homes: Mapping[str, str], pool: DrafterPool, most: int) -> Collection[str]:
        return [*homes][: self._count]

    def record_asked(self, request_id: str, drafters: Listed[str]) -> None:
        """Record nothing."""

    def update(
        self, request_id: str, tree: Tree, committed: Listed[int], confidence: Mapping[str, float] | None
    ) -> None:
        """Learn nothing."""

    def remove(self, request_id: str) -> None:
        """Remove nothing."""


class PaceRouting(FixedRouting):
    """Take drafters on other cores than the verifier's, as many as bring most a second, else one drafter, always the
    same for a request.
    """

    def __init__(self) -> None:
        super().__init__()
        self._drafters = DrafterCount()
        self._asked: dict[str, list[str]] = {}  # by request
        self._lone: dict[str, str] = {}  # by request: the one drafter

    @property
    def count(self) -> DrafterCount:
        return self._drafters

    @property
    def is_scoring(self) -> bool:
        return bool(self._asked)

    def choose(self, request_id: str, homes: Mapping[str, str], pool: DrafterPool, most: int) -> Collection[str]:
        if free := [name for name, box in homes.items() if not pool.is_here(box)]:
            allowed = shuffled(request_id, free)[:most]
            # Of those all requests have the same ones first: few nodes with many sequences take fewer messages.
            asked = self._drafters.in_order(shuffled(pool.alone, allowed))[: self._drafters.asked(len(allowed))]
            self._asked[request_id] = asked
            return asked
        if self._lone.get(request_id) not in homes:
            self._lone[request_id] = next(iter(homes))
        return [self._lone[request_id]]

    def update(
        self, request_id: str, tree: Tree, committed: Listed[int], confidence: Mapping[str, float] | None
    ) -> None:
        came = [name for name in self._asked.get(request_id, ()) if name in (confidence or {})]
        self._drafters.learn(came, tree, committed)

    def remove(self, request_id: str) -> None:
        self._lone.pop(request_id, None)
        self._asked.pop(request_id, None)


@dataclass(slots=True)
class MatrixEntry:
    score: float = MATCH_START
    rounds: int = 0


@dataclass(slots=True)
class MatrixRow:
    entries: dict[str, MatrixEntry] = field(default_factory=dict)
    asked: tuple[str, ...] = ()  # drafters of the round that has no verdict yet
    accepted_length: float | None = None  # of recent rounds, the target's own token included


class CosineRouting:
    """Choose by CoSine's routing matrix, of scores from confidence and agreement (papers 1.2, reconstructed).

    s = 2 c a / (c + a),   M[r, n] += MATCH_RATE (s - M[r, n])
    """

    count: Final = None

    def __init__(self, agreement: Agreement) -> None:
        """`agreement` of drafted and committed tokens: 0 ... 1."""
        self._agreement = agreement
        self._rows: OrderedDict[str, MatrixRow] = OrderedDict()  # by request

    @property
    def is_scoring(self) -> bool:
        return bool(self._rows)

    def choose(self, request_id: str, homes: Mapping[str, str], pool: DrafterPool, most: int) -> Collection[str]:
        row = self._row(request_id, homes)
        entries = {name: row.entries[name] for name in shuffled(request_id, homes)}
        return chosen(entries, most, is_exploring=is_short(row.accepted_length))

    def record_asked(self, request_id: str, drafters: Listed[str]) -> None:
        row = self._row(request_id, drafters)
        row.asked = tuple(drafters)
        for name in row.asked:
            row.entries[name].rounds += 1

    def update(
        self, request_id: str, tree: Tree, committed: Listed[int], confidence: Mapping[str, float] | None
    ) -> None:
        """Compare each drafter's confidence with what was committed where it drafted."""
        row = self._rows.get(request_id)
        if row is None:
            return
        asked, row.asked = row.asked, ()
        if not asked:
            return
        length = len(tree.walk(committed).path) + 1
        last = float(length) if row.accepted_length is None else row.accepted_length
        row.accepted_length = LENGTH_DECAY * last + (1.0 - LENGTH_DECAY) * length
        for name in asked:
            drafted = guesses(tree, name, len(committed))
            agreement = 0.0
            if drafted:
                agreement = self._agreement([*drafted.values()], [committed[place] for place in drafted])
            entry = row.entries[name]
            entry.score += MATCH_RATE * (harmonic((confidence or {}).get(name, 0.0), agreement) - entry.score)

    def remove(self, request_id: str) -> None:
        self._rows.pop(request_id, None)

    def _row(self, request_id: str, drafters: Collection[str]) -> MatrixRow:
        row = self._rows.setdefault(request_id, MatrixRow())
        for name in drafters:
            row.entries.setdefault(name, MatrixEntry())
        while len(self._rows) > MAX_REQUESTS:
            self._rows.popitem(last=False)
        return row


def shuffled(owner: str, drafters: Collection[str]) -> list[str]:
    """Return the drafters in a fixed order of the owner's own."""
    return sorted(drafters, key=lambda name: (crc32(f"{owner}:{name}".encode()), name))


def is_short(accepted_length: float | None) -> bool:
    return accepted_length is None or accepted_length < SHORT


def chosen(entries: Mapping[str, MatrixEntry], most: int, *, is_exploring: bool) -> list[str]:
    """Choose `most` drafters, most of them by score, or while exploring by fewest rounds; of equals the first."""
    by_score = sorted(entries, key=lambda name: -entries[name].score)
    by_rounds = sorted(entries, key=lambda name: entries[name].rounds)
    first, then = (by_rounds, by_score) if is_exploring else (by_score, by_rounds)
    found = first[: ceil((NEW_SHARE if is_exploring else BEST_SHARE) * most)]
    return found + [name for name in then if name not in found][: max(0, most - len(found))]


class Router:
    def __init__(self, strategy: RoutingStrategy, most: int = 2) -> None:
        self.asked_rounds: Final = Counter[str]()  # by drafter, where there was a choice
        self._strategy = strategy
        self._most = most
        self._homes: dict[str, dict[str, str]] = {}  # by request and drafter: the node that has read it
        self._requests_at: Counter[str] = Counter()  # by mailbox: requests at home there
        # By request, with the pool it was made for, and the length where there was a choice.
        self._routes: dict[str, tuple[int | None, DrafterPool, Route]] = {}
        self._model_free: dict[tuple[str, ...] | None, Route] = {}  # by the drafters that a request names,
        self._model_free_pool: DrafterPool | None = None  # of this pool

    def known(self, request_id: str, length: int, pool: DrafterPool) -> Route | None:
        """Return the request's route for the tokens after `length`, if `route` found it."""
        known = self._routes.get(request_id)
        return known[2] if known and known[1] is pool and known[0] in (length, None) else None

    def model_free(self, names: tuple[str, ...] | None, pool: DrafterPool) -> Route:
        """Return the route of all requests that name these drafters where models are left out."""
        if self._model_free_pool is not pool:
            self._model_free, self._model_free_pool = {}, pool
        found = self._model_free.get(names)
        if found is None:
            found = self._model_free[names] = Route(
                tuple(name for name in pool.allowed(names) if name not in pool.models), {}, pool.alone
            )
        return found

    def route(self, record: Record, length: int, pool: DrafterPool, most: int) -> Route:
        """Choose at most `most` model drafters for the tokens after `length`.

        The route is `known` until the sequence has grown, or without a choice as long as the pool stays.
        """
        names = pool.allowed(record.speculation.drafters)
        models = [name for name in names if name in pool.models] if pool.models else []
        homes = {name: self._home(record.id, name, pool) for name in models}
        is_choice = len(models) > 1
        if is_choice:
            found = set(self._strategy.choose(record.id, homes, pool, min(most, self._most)))
            names = tuple(name for name in names if name in found or name not in homes)
            homes = {name: box for name, box in homes.items() if name in found}
        route = Route(names, homes, pool.fuser_of(set(homes.values())), is_choice)
        self._routes[record.id] = length if is_choice else None, pool, route
        return route

    def record_asked(self, record: Record, route: Route) -> None:
        if route.is_choice:
            self._strategy.record_asked(record.id, tuple(route.homes))
            self.asked_rounds.update(route.homes.keys())

    def update(
        self, request_id: str, tree: Tree, committed: Listed[int], confidence: Mapping[str, float] | None = None
    ) -> None:
        self._strategy.update(request_id, tree, committed, confidence)

    @property
    def count(self) -> DrafterCount | None:
        return self._strategy.count

    @property
    def is_scoring(self) -> bool:
        return self._strategy.is_scoring

    def remove(self, request_id: str) -> None:
        self._routes.pop(request_id, None)
        self._requests_at.subtract(self._homes.pop(request_id, {}).values())
        self._strategy.remove(request_id)

    def _home(self, request_id: str, drafter: str, pool: DrafterPool) -> str:
        """Return the node where the drafter has read the sequence, else the least loaded."""
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


def guesses(tree: Tree, drafter: str, depth: int) -> dict[int, int]:
    """Return a drafter's likeliest token at each position after the root, from 0, below `depth`.

    CoSine compares them with the committed ones position by position (papers 1.2), also behind a wrong one.
    """
    found: dict[int, tuple[float, int]] = {}
    for place, token, survival, names in zip(
        tree.depths()[1:], tree.tokens, tree.survival, tree.proposers, strict=True
    ):
        if drafter in names and place <= depth and survival > found.get(place - 1, (-1.0, 0))[0]:
            found[place - 1] = survival, token
    return {place: token for place, (_, token) in sorted(found.items())}


def harmonic(confidence: float, agreement: float) -> float:
    """Return CoSine's score of one round (papers 1.2: the form is known, its constants are not)."""
    total = confidence + agreement
    return 2.0 * confidence * agreement / total if total > 0.0 else 0.0


def same_tokens(drafted: Listed[int], committed: Listed[int]) -> float:
    """Return the share of positions with the same token: agreement without an embedding."""
    return sum(a == b for a, b in zip(drafted, committed, strict=True)) / max(1, len(drafted))
