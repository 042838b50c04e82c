"""Keep a sequence's guesses as a tree: its draft, and what may follow each outcome of the verdict.

A verdict commits a path of the draft and one token more. Where the tree has that token, too, what stands behind it is
the next round's tree.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from app.messages import Draft
from app.stages.draft.protocol import Context, draft_of
from app.state import CachedSequence, Guess

LEAST_AHEAD = 0.01  # survival of a node that is guessed from for later rounds


@dataclass(slots=True)
class _Node:
    token: int
    parent: int
    depth: int
    confidence: float
    survival: float
    guess: Guess | None = None  # behind it
    is_open: bool = True  # to be guessed from
    below: dict[int, int] = field(default_factory=dict)  # nodes by their tokens


class GuessTree:
    """One sequence's guesses behind its context. Node 0 is the root; a first choice stands before its siblings."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.start = len(context.tokens)  # the list grows
        self.until_s = 0.0  # when the verdict on its draft is expected
        self.caches: dict[int, CachedSequence] = {}  # by node that was guessed from
        self._least = min(LEAST_AHEAD, context.least_survival) if context.step_s else context.least_survival
        self._nodes = [_Node(0, 0, 0, 1.0, 1.0)]
        self._order = [(-1.0, 0, 0)]  # nodes by falling survival, parents first

    def __getitem__(self, node: int) -> _Node:
        return self._nodes[node]

    @property
    def is_stale(self) -> bool:
        """Tell whether the sequence has gone on since."""
        return len(self.context.tokens) > self.start

    def after(self, context: Context) -> tuple["GuessTree", CachedSequence | None]:
        """Return the tree behind a context, and the cache of most of that context, None if this has none of it."""
        new, node = GuessTree(context), 0
        cache = self.caches.get(node)
        if new.start < self.start:
            return new, cache
        for token in context.tokens[self.start :]:
            below = self._nodes[node].below.get(token)
            if below is None:
                return new, cache
            node, cache = below, self.caches.get(below, cache)
        todo = [(node, 0)]
        for of, to in todo:
            guess = self._nodes[of].guess
            if guess is not None:
                new.extend(to, [guess], self.caches[of])
                known = self._nodes[of].below
                todo += [(known[token], place) for token, place in new[to].below.items() if token in known]
        return new, cache

    def extend(self, node: int, guesses: Iterable[Guess], cache: CachedSequence) -> None:
        """Add a chain of guesses behind a node, guessed in this cache."""
        for guess in guesses:
            self.caches[node] = cache
            node = self._add(node, guess)

    def is_first(self, node: int) -> bool:
        """Tell whether a node is the first choice behind its parent."""
        own = self._nodes[node]
        guess = self._nodes[own.parent].guess
        return guess is not None and guess.token == own.token

    def open(self) -> list[int]:
        """List the nodes that may be guessed from for this draft: those of it that are deep and sure enough."""
        least, deepest = self.context.least_survival, self.context.max_draft_tokens
        nodes = ((node, self._nodes[node]) for node in self._drafted())
        return [i for i, own in nodes if own.is_open and own.depth < deepest and own.survival >= least]

    def open_ahead(self) -> list[int]:
        """List the nodes that may be guessed from for later drafts, the likeliest first."""
        furthest = 2 * self.context.max_draft_tokens + 1  # this draft's, the target's own token, and as many again
        nodes = ((node, self._nodes[node]) for _, _, node in self._order)
        likely = takewhile(lambda one: one[1].survival >= LEAST_AHEAD, nodes)
        return [node for node, own in likely if own.is_open and own.depth < furthest]

    def chain(self) -> list[int]:
        """Return the tokens along first choices."""
        found, own = [], self._nodes[0]
        while own.guess is not None:
            found.append(own.guess.token)
            own = self._nodes[own.below[own.guess.token]]
        return found

    def draft(self, name: str) -> Draft:
        drafted = self._drafted()
        places = {node: place for place, node in enumerate(drafted)}
        own = [self._nodes[node] for node in drafted[1:]]
        chances = [min(1.0, max(0.0, node.confidence)) for node in own]
        return draft_of(name, self.context, [n.token for n in own], [places[n.parent] for n in own], chances)

    def _drafted(self) -> list[int]:
        """Return the draft's nodes, the likeliest first. Behind unlikely ones nothing is part of it."""
        deepest, least = self.context.max_draft_tokens, self.context.least_survival
        found, inner = [0], {0}  # inner: those with nodes of the draft behind them
        for _, depth, node in self._order[1:]:
            if len(found) > self.context.max_nodes:
                break
            own = self._nodes[node]
            is_likely = own.survival >= least
            if own.parent in inner and (is_likely or self.is_first(node)):
                found.append(node)
                if is_likely and depth < deepest:
                    inner.add(node)
        return found

    def _add(self, at: int, guess: Guess) -> int:
        above, first = self._nodes[at], len(self._nodes)
        above.guess, above.is_open = guess, False
        for token, sure in dict([guess[:2], *reversed(guess.further), guess[2:4], guess[:2]]).items():
            survival = above.survival * sure
            if token == guess.token or survival >= self._least:
                above.below[token] = len(self._nodes)
                insort(self._order, (-survival, above.depth + 1, len(self._nodes)))
                self._nodes.append(_Node(token, at, above.depth + 1, sure, survival))
        return first
