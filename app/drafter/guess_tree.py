"""Grow trees of a model's guesses: each pass guesses from the likeliest open nodes of all trees, as many as pay.

A node is guessed from where its survival is worth a row of a step (`least_survival`), and a pass is made while what it
may gain is worth its seconds (`pace`), for the number of nodes that gains most. So a tree is one path where rows or
wider passes cost, several where they do not, and it ends where it is no longer sure. First choices go on in their
parent's cache, others in a fork of it, which lives as long as the tree grows.
"""

from bisect import insort
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from itertools import islice

from app.drafter.draft_kv import DraftKV
from app.messages import Draft
from app.stages.draft.protocol import Context, draft_of
from app.state import CachedSequence, Guess

MOST_SECOND = 0.5  # chance of a second choice: at a higher price there is one path, and its guesses need one call


@dataclass(slots=True)
class _Node:
    token: int
    parent: int
    depth: int
    confidence: float
    survival: float
    guess: Guess | None = None  # behind it
    is_open: bool = True  # to be guessed from


class GuessTree:
    """One sequence's guesses behind its context. Node 0 is the root; a first choice stands before its siblings."""

    def __init__(self, context: Context, known: Iterable[Guess] = ()) -> None:
        """`known`: a chain guessed before."""
        self.context = context
        self.caches: dict[int, CachedSequence] = {}  # by node that was guessed from, while the tree grows
        self._nodes = [_Node(0, 0, 0, 1.0, 1.0)]
        self._order = [(-1.0, 0, 0)]  # nodes by falling survival, parents first
        self.extend(0, known)

    def __getitem__(self, node: int) -> _Node:
        return self._nodes[node]

    def extend(self, node: int, guesses: Iterable[Guess]) -> list[int]:
        """Add a chain of guesses behind a node; return the nodes that they were guessed from."""
        found = []
        for guess in guesses:
            found.append(node)
            node = self._add(node, guess)
        return found

    def is_first(self, node: int) -> bool:
        """Tell whether a node is the first choice behind its parent."""
        own = self._nodes[node]
        guess = self._nodes[own.parent].guess
        return node == 0 or (guess is not None and guess.token == own.token)

    def open(self) -> list[int]:
        """List the nodes that may be guessed from: of the tree's likeliest, those that are deep and sure enough."""
        least, deepest = self.context.least_survival, self.context.max_draft_tokens
        nodes = [node for _, _, node in self._kept()]
        return [i for i in nodes if (own := self._nodes[i]).is_open and own.depth < deepest and own.survival >= least]

    def chain(self) -> list[Guess]:
        """Return the guesses along first choices."""
        found, node = [], 0
        while (guess := self._nodes[node].guess) is not None:
            found.append(guess)
            node = next(i for i in range(node + 1, len(self._nodes)) if self._nodes[i].parent == node)
        return found

    def drafts(self, name: str) -> list[Draft]:
        kept = [node for _, _, node in self._kept()]
        places = {node: place for place, node in enumerate(kept)}
        own = [self._nodes[node] for node in kept[1:]]
        chances = [min(1.0, max(0.0, node.confidence)) for node in own]
        if not own:
            return []
        return [draft_of(name, self.context, [n.token for n in own], [places[n.parent] for n in own], chances)]

    def _kept(self) -> Iterable[tuple[float, int, int]]:
        return islice(self._order, 1 + self.context.max_nodes)

    def _add(self, at: int, guess: Guess) -> int:
        above, first = self._nodes[at], len(self._nodes)
        above.guess, above.is_open = guess, False
        for token, sure in dict([guess[:2], *reversed(guess.further), guess[2:4], guess[:2]]).items():
            survival = above.survival * sure
            if token == guess.token or survival >= self.context.least_survival:
                insort(self._order, (-survival, above.depth + 1, len(self._nodes)))
                self._nodes.append(_Node(token, at, above.depth + 1, sure, survival))
        return first


def grow(drafter: DraftKV, trees: Listed[GuessTree]) -> int:
    """Guess until no pass pays; return the levels that were guessed one after the other."""
    levels = 0
    while picked := _picked(drafter, trees, is_first=not levels):
        works = [(tree, node, cache) for tree, node in picked if (cache := _cache(drafter, tree, node)) is not None]
        for tree, node in picked:
            tree[node].is_open = False
        least = min(tree.context.least_survival for tree in trees)
        depth = min(tree.context.max_draft_tokens - tree[node].depth for tree, node in picked)
        found = drafter.guess_behind([cache for _, _, cache in works], depth if least >= MOST_SECOND else 1, least)
        for (tree, node, cache), guesses in zip(works, found, strict=True):
            tree.caches.update(dict.fromkeys(tree.extend(node, guesses), cache))
            if len(guesses) > 1:
                drafter.append(cache, [guess.token for guess in guesses])
        levels += max(map(len, found), default=0) or 1
    for tree in trees:
        tree.caches.clear()
    drafter.drop_forks()
    return levels


def _picked(drafter: DraftKV, trees: Listed[GuessTree], *, is_first: bool) -> list[tuple[GuessTree, int]]:
    """Choose the likeliest nodes, for the number that gains most over its seconds; all roots first."""
    nodes = [(tree[i].survival, -number, i) for number, tree in enumerate(trees) for i in tree.open()]
    nodes.sort(reverse=True)
    pace = sum(tree.context.pace for tree in trees)
    best = sum(node == 0 for _, _, node in nodes) if is_first else 0
    gain, most = 0.0, 0.0
    for count, (survival, number, _) in enumerate(nodes, start=1):
        gain += survival * drafter.sureness - trees[-number].context.least_survival
        worth = gain - pace * drafter.level_s(count)
        if worth > most and count > best:
            best, most = count, worth
    return [(trees[-number], node) for _, number, node in nodes[:best]]


def _cache(drafter: DraftKV, tree: GuessTree, node: int) -> CachedSequence | None:
    """Return a cache of the tokens up to a node, all of it but the last; None without room."""
    own, main = tree[node], drafter.find(tree.context.request_id)
    parent = tree.caches.get(own.parent, main)
    length = len(tree.context.tokens) + own.depth
    if parent is None or node == 0:
        return parent
    if not tree.is_first(node):
        return drafter.fork(parent, [*parent.tokens[: length - 1], own.token])
    if len(parent.tokens) < length:
        drafter.append(parent, [own.token])
    return parent
