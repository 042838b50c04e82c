"""Grow trees of a model's guesses: each pass guesses from the likeliest open nodes of all trees, as many as pay.

For a draft, a node is guessed from where its survival is worth a row of a step (`least_survival`), and a pass is made
while what it may gain is worth the seconds by which it delays the step (`pace`), for the number of nodes that gains
most. So a tree is one path where rows or wider passes cost, several where they do not, and it ends where it is no
longer sure. A sequence of which nothing is known yet has no draft where that is not worth a pass to all that wait.

While a verdict is pending trees grow on for whatever it may be, in the passes that bring the most expected tokens a
second, as long as these end before it or pay nevertheless. First choices go on in their parent's cache, others in a
fork of it.
"""

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from itertools import accumulate

from app.clock import SYSTEM, Clock
from app.drafter.draft_kv import MAX_SEQUENCES, DraftKV
from app.drafter.guess_tree import GuessTree
from app.messages import Draft
from app.stages.draft.protocol import Context
from app.state import CachedSequence

SURE_WEIGHT = 0.01  # of a guess that is behind right tokens in the mean confidence
MOST_SECOND = 0.5  # chance of a second choice: at a higher price there is one path, and its guesses need one call
Open = tuple[float, GuessTree, int]  # a node's survival, and where it is


class TreeDrafting:
    """A drafter's trees, one a sequence; over MAX_SEQUENCES the oldest are dropped."""

    def __init__(self, drafter: DraftKV, clock: Clock = SYSTEM) -> None:
        self._drafter = drafter
        self._clock = clock
        self.sureness = 1.0  # mean confidence of first choices behind right tokens
        self._trees: OrderedDict[str, GuessTree] = OrderedDict()
        self.ahead_hits = self.ahead_misses = 0  # verdicts whose outcome was guessed from, and others
        self.guessed = 0  # levels that the last call of `draft` guessed, one after the other

    def draft(self, contexts: Iterable[Context]) -> list[Draft]:
        able = [c for c in contexts if len(c.tokens) + c.max_draft_tokens <= self._drafter.max_context]
        trees = [self._start(context) for context in able]
        self.guessed = 0
        if not trees:
            return []
        while picked := self._pick(trees):
            least = min(tree.context.least_survival for tree in trees)
            depth = min(tree.context.max_draft_tokens - tree[node].depth for _, tree, node in picked)
            self.guessed += self._guess(picked, depth if least >= MOST_SECOND else 1, least)
        now_s = self._clock.perf_counter()
        for tree in trees:
            tree.until_s = now_s + tree.context.step_s
        return [tree.draft(self._drafter.name) for tree in trees]

    def run_ahead(self, request_ids: Iterable[str]) -> bool:
        """Make one pass for the rounds to come, if one pays."""
        trees = [self._trees[request_id] for request_id in request_ids if request_id in self._trees]
        now_s = self._clock.perf_counter()
        if any(self._drafter.read_in(tree.context.request_id, tree.until_s - now_s) for tree in trees):
            return True
        picked = self._pick_ahead(trees)
        if picked:
            self._guess(picked, 1, 0.0, in_spare_time=True)
        return bool(picked)

    def remove(self, request_id: str) -> None:
        tree = self._trees.pop(request_id, None)
        if tree is not None:
            self._drafter.drop_forks(tree.caches.values())

    def _start(self, context: Context) -> GuessTree:
        last = self._trees.pop(context.request_id, None)
        tree = GuessTree(context)
        if last is not None:
            tree, cache = last.after(context)
            self._drafter.adopt(context.request_id, cache)
            kept = {id(own) for own in tree.caches.values()}
            self._drafter.drop_forks(own for own in last.caches.values() if id(own) not in kept)
            if last.context.step_s:
                self.ahead_hits += not tree[0].is_open
                self.ahead_misses += tree[0].is_open
        self._drafter.align(context, [*context.tokens, *tree.chain()])
        self._trees[context.request_id] = tree
        while len(self._trees) > MAX_SEQUENCES:
            self.remove(next(iter(self._trees)))
        return tree

    def _pick(self, trees: Listed[GuessTree]) -> list[Open]:
        """Choose the likeliest nodes, for the number that gains most over its seconds, if any does."""
        pace = sum(tree.context.pace for tree in trees)
        read = [tree for tree in trees if not self._is_unread(tree) or self._is_worth_reading(tree, pace)]
        nodes = _sorted((tree[node].survival, tree, node) for tree in read for node in tree.open())
        best, most, gain = 0, 0.0, 0.0
        for count, (survival, tree, _) in enumerate(nodes, start=1):
            gain += survival * self.sureness - tree.context.least_survival
            worth = gain - pace * self._drafter.level_s(count)
            if worth > most:
                best, most = count, worth
        return nodes[:best]

    def _pick_ahead(self, trees: Listed[GuessTree]) -> list[Open]:
        """Choose the likeliest nodes, for the number of most expected tokens a second."""
        nodes = _sorted((tree[node].survival, tree, node) for tree in trees for node in tree.open_ahead())
        drafter, now_s = self._drafter, self._clock.perf_counter()
        del nodes[max(len(trees), 2 * drafter.most_rows) :]  # what a wider pass takes is not known yet
        gains = [*accumulate(survival * self.sureness for survival, _, _ in nodes)]
        took_s = [drafter.level_s(count) for count in range(1, 1 + len(nodes))]
        if not nodes or not all(took_s):
            return nodes
        best = max(range(len(nodes)), key=lambda i: gains[i] / took_s[i])
        end_s = now_s + took_s[best]
        lost = sum(tree.context.pace * max(0.0, end_s - tree.until_s) for tree in trees)
        return nodes[: best + 1] if gains[best] > lost else []

    def _is_unread(self, tree: GuessTree) -> bool:
        own = self._drafter.find(tree.context.request_id)
        return tree[0].is_open and own is not None and self._drafter.is_unread(own)

    def _is_worth_reading(self, tree: GuessTree, pace: float) -> bool:
        """Tell whether a whole draft is worth the time of reading what is unread, and of its guesses, to all.

        Without spare time nothing is read otherwise.
        """
        if not tree.context.step_s:
            return True
        own = self._drafter.find(tree.context.request_id)
        unread = own.uncached if own is not None else 0
        spent, survival, gain = pace * self._drafter.token_s * unread, 1.0, 0.0
        for _ in range(tree.context.max_draft_tokens):
            survival *= self.sureness
            gain += survival - pace * self._drafter.level_s(1)
            if gain > spent:
                return True
        return False

    def _guess(self, picked: list[Open], depth: int, least: float, *, in_spare_time: bool = False) -> int:
        """Guess from these nodes; return the levels guessed."""
        works = [(tree, node, cache) for _, tree, node in picked if (cache := self._cache(tree, node)) is not None]
        for _, tree, node in picked:
            tree[node].is_open = False
        caches = [cache for _, _, cache in works]
        found = self._drafter.guess_behind(caches, depth, least, in_spare_time=in_spare_time)
        for (tree, node, cache), guesses in zip(works, found, strict=True):
            survival = tree[node].survival
            for guess in guesses:
                self.sureness += SURE_WEIGHT * survival * (guess.confidence - self.sureness)
                survival *= guess.confidence
            tree.extend(node, guesses, cache)
            if len(guesses) > 1:
                self._drafter.append(cache, [guess.token for guess in guesses])
        return max(map(len, found), default=0) or 1

    def _cache(self, tree: GuessTree, node: int) -> CachedSequence | None:
        """Return a cache of the tokens up to a node, all of it but the last; None without room."""
        own, main = tree[node], self._drafter.find(tree.context.request_id)
        parent = main if node == 0 else tree.caches.get(own.parent)
        length = tree.start + own.depth
        if parent is None or not self._drafter.holds(parent):
            return None
        if node == 0:
            return parent
        if not tree.is_first(node):
            return self._drafter.fork(parent, [*parent.tokens[: length - 1], own.token])
        if len(parent.tokens) < length:
            self._drafter.append(parent, [own.token])
        return parent


def _sorted(nodes: Iterable[Open]) -> list[Open]:
    return sorted(nodes, key=lambda one: -one[0])
