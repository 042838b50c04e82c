"""Grow trees of a model's guesses: each pass guesses from the likeliest open nodes of all trees, as many as pay.

For a draft, a node is guessed from where its survival is worth a row of a step (`least_survival`), and a pass is made
while what it may gain is worth the seconds by which it delays the steps of all that wait (`pace`), for the number of
nodes that gains most. So a tree is one path where rows or wider passes cost, several where they do not, and it ends
where it is no longer sure. A sequence of which nothing is known yet has no draft where that is not worth a pass to all
that wait. A batch that comes between two passes takes part in the next one, and leaves when none of its nodes pays.

While a verdict is pending trees grow on for whatever it may be: beside drafts, for as many nodes as are worth the
seconds that they add to a pass, else in the passes that bring the most expected tokens a second, as long as these end
before the verdict or pay nevertheless. First choices go on in their parent's cache, others in a fork of it.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from itertools import accumulate

from app.clock import SYSTEM, Clock
from app.drafter.draft_kv import MAX_SEQUENCES, DraftKV
from app.drafter.draft_steps import DraftPart
from app.drafter.guess_tree import GuessTree
from app.stages.draft.protocol import Context
from app.state import CachedSequence

SURE_WEIGHT = 0.01  # of a guess that is behind right tokens in the mean confidence
MOST_SECOND = 0.5  # chance of a second choice: at a higher price there is one path, and its guesses need one call
Open = tuple[float, GuessTree, int]  # what a node is sorted by (its survival or its gain), and where it is


@dataclass(slots=True, eq=False)
class TreePart(DraftPart):
    trees: list[GuessTree] = field(default_factory=list)


class TreeDrafting:
    """A drafter's trees, one a sequence; over MAX_SEQUENCES the oldest are dropped."""

    def __init__(self, drafter: DraftKV, clock: Clock = SYSTEM) -> None:
        self._drafter = drafter
        self._clock = clock
        self.sureness = 1.0  # mean confidence of first choices behind right tokens
        self._trees: OrderedDict[str, GuessTree] = OrderedDict()
        self._parts: list[TreePart] = []  # that are not done
        self.ahead_hits = self.ahead_misses = 0  # verdicts whose outcome was guessed from, and others

    def begin(self, contexts: Iterable[Context]) -> DraftPart:
        """Begin the trees of a batch; it is done where none of their nodes pays."""
        able = [c for c in contexts if len(c.tokens) + c.max_draft_tokens <= self._drafter.max_context]
        part = TreePart(trees=[self._start(context) for context in able])
        self._parts.append(part)
        self._end_done()
        return part

    @property
    def level_s(self) -> float:
        """Return the seconds of one more guess; 0 before any."""
        return self._drafter.usual_level_s

    def go_on(self, pending: Collection[str] = ()) -> None:
        """Make a pass for all parts, if one pays, and end those that need no more.

        `pending`: requests whose verdict is expected; nodes behind it fill the pass.
        """
        picked = self._pick()
        if picked:
            least = min(tree.context.least_survival for _, tree, _ in picked)
            depth = min(tree.context.max_draft_tokens - tree[node].depth for _, tree, node in picked)
            beside = [] if least >= MOST_SECOND else self._pick_beside(len(picked), pending)
            levels = self._guess(picked, beside, depth if least >= MOST_SECOND else 1, least)
            trees = {id(tree) for _, tree, _ in picked}
            for part in self._parts:
                part.levels += levels * (not trees.isdisjoint(map(id, part.trees)))
        self._end_done()

    def read_ahead(self, request_ids: Iterable[str]) -> bool:
        """Read a piece of a text, if any is unread, until its verdict is expected, or for about as long as a guess."""
        trees = [self._trees[request_id] for request_id in request_ids if request_id in self._trees]
        now_s, least_s = self._clock.perf_counter(), self._drafter.level_s(1)
        return any(self._drafter.read_in(tree.context.request_id, max(least_s, tree.until_s - now_s)) for tree in trees)

    def run_ahead(self, request_ids: Iterable[str]) -> bool:
        """Make one pass for the rounds to come, if one pays."""
        trees = [self._trees[request_id] for request_id in request_ids if request_id in self._trees]
        picked = self._pick_ahead([tree for tree in trees if not tree.context.is_reading])
        if picked:
            self._guess([], picked, 1, 0.0)
        return bool(picked)

    def remove(self, request_id: str) -> None:
        tree = self._take(request_id)
        if tree is not None:
            self._drafter.drop_forks(tree.caches.values())

    def _start(self, context: Context) -> GuessTree:
        last = self._take(context.request_id)
        tree = GuessTree(context)
        if last is not None:
            tree, cache = last.after(context)
            self._drafter.adopt(context.request_id, cache)
            kept = {id(own) for own in tree.caches.values()}
            self._drafter.drop_forks(own for own in last.caches.values() if id(own) not in kept)
            if last.context.step_s and not last.context.is_reading:
                self.ahead_hits += not tree[0].is_open
                self.ahead_misses += tree[0].is_open
        self._drafter.align(context, [*context.tokens, *tree.chain()])
        tree.until_s = self._clock.perf_counter() + context.step_s  # later, once its draft is done
        self._trees[context.request_id] = tree
        while len(self._trees) > MAX_SEQUENCES:
            self.remove(next(iter(self._trees)))
        return tree

    def _take(self, request_id: str) -> GuessTree | None:
        """Remove and return a tree, which no part waits for any more."""
        tree = self._trees.pop(request_id, None)
        for part in self._parts:
            part.trees = [own for own in part.trees if own is not tree]
        return tree

    def _end_done(self) -> None:
        """End the parts of which no node pays."""
        for part in self._parts:
            if not part.is_done and not self._pick(part):
                now_s = self._clock.perf_counter() if part.trees else 0.0
                for tree in part.trees:
                    tree.until_s = now_s + tree.context.step_s
                part.drafts = [tree.draft(self._drafter.name) for tree in part.trees if not tree.is_stale]
                part.is_done = True
        self._parts = [part for part in self._parts if not part.is_done]

    def _pick(self, part: TreePart | None = None) -> list[Open]:
        """Choose the nodes of a part, or of all, that gain most over their seconds to all that wait, if any do.

        Nodes go by their gains, since prices differ by part: so if a part has such nodes, all together have some, too.
        """
        trees, pace = self._waiting()
        own = trees if part is None else [tree for tree in part.trees if _is_waited_for(tree)]
        read = [tree for tree in own if not self._is_unread(tree) or self._is_worth_reading(tree, pace)]
        nodes = _sorted(
            (tree[node].survival * self.sureness - tree.context.least_survival, tree, node)
            for tree in read
            for node in tree.open()
        )
        return nodes[: self._best([gain for gain, _, _ in nodes], pace)]

    def _pick_beside(self, rows: int, pending: Collection[str]) -> list[Open]:
        """Choose the likeliest nodes behind pending verdicts, for the number that gains most over the seconds that it
        adds to a pass of so many rows.
        """
        waiting, pace = self._waiting()
        drafted = {tree.context.request_id for tree in waiting}
        trees = [tree for one in pending if one not in drafted and (tree := self._trees.get(one)) is not None]
        # Behind a root that is not guessed from, several tokens may be unread.
        nodes = self._ahead([tree for tree in trees if not tree[0].is_open], rows)
        return nodes[: self._best([survival * self.sureness for survival, _, _ in nodes], pace, rows)]

    def _best(self, gains: Listed[float], pace: float, rows: int = 0) -> int:
        """Return how many nodes gain most over the seconds that they add to a pass of so many rows; 0 if none pays."""
        base_s, best, most = self._drafter.level_s(rows) if rows else 0.0, 0, 0.0
        for count, gain in enumerate(accumulate(gains), start=1):
            worth = gain - pace * (self._drafter.level_s(rows + count) - base_s)
            if worth > most:
                best, most = count, worth
        return best

    def _waiting(self) -> tuple[list[GuessTree], float]:
        """Return the trees that are waited for, and the tokens a second that they lose meanwhile."""
        trees = [tree for part in self._parts if not part.is_done for tree in part.trees if _is_waited_for(tree)]
        return trees, sum(tree.context.pace for tree in trees)

    def _ahead(self, trees: Listed[GuessTree], rows: int = 0) -> list[Open]:
        """List the likeliest nodes to guess from for later drafts, in a pass that has so many rows."""
        nodes = _sorted((tree[node].survival, tree, node) for tree in trees for node in tree.open_ahead())
        most = max(rows + len(trees), 2 * self._drafter.most_rows)  # what a wider pass takes is not known yet
        return nodes[: most - rows]

    def _pick_ahead(self, trees: Listed[GuessTree]) -> list[Open]:
        """Choose the likeliest nodes, for the number of most expected tokens a second."""
        nodes, drafter, now_s = self._ahead(trees), self._drafter, self._clock.perf_counter()
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

    def _guess(self, picked: list[Open], ahead: list[Open], depth: int, least: float) -> int:
        """Guess from these nodes, those `ahead` as memory allows; return the levels guessed."""
        picked, first = picked + ahead, {id(tree) for _, tree, _ in picked}
        works = [
            (tree, node, cache) for _, tree, node in picked if (cache := self._cache(tree, node, first)) is not None
        ]
        for _, tree, node in picked:
            tree[node].is_open = False
        spare = sum(id(tree) not in first for tree, _, _ in works)
        found = self._drafter.guess_behind([cache for _, _, cache in works], depth, least, spare=spare)
        for (tree, node, cache), guesses in zip(works, found, strict=True):
            survival = tree[node].survival
            for guess in guesses:
                self.sureness += SURE_WEIGHT * survival * (guess.confidence - self.sureness)
                survival *= guess.confidence
            tree.extend(node, guesses, cache)
            if not guesses and all(cache is not own for own in tree.caches.values()):
                self._drafter.drop_forks([cache])
            if len(guesses) > 1:
                self._drafter.append(cache, [guess.token for guess in guesses])
        return max(map(len, found), default=0) or 1

    def _cache(self, tree: GuessTree, node: int, waiting: Collection[int]) -> CachedSequence | None:
        """Return a cache of the tokens up to a node, all of it but the last; None without room.

        The forks of others than the `waiting` trees, by id(), give way to a fork of theirs.
        """
        own, main = tree[node], self._drafter.find(tree.context.request_id)
        parent = main if node == 0 else tree.caches.get(own.parent)
        length = tree.start + own.depth
        if parent is None or not self._drafter.holds(parent):
            return None
        if node == 0:
            return parent
        if not tree.is_first(node):
            tokens = [*parent.tokens[: length - 1], own.token]
            fork = self._drafter.fork(parent, tokens)
            if fork is None and id(tree) in waiting:
                others = (
                    cache for one in self._trees.values() if id(one) not in waiting for cache in one.caches.values()
                )
                self._drafter.drop_forks(others)
                fork = self._drafter.fork(parent, tokens)
            return fork
        if len(parent.tokens) < length:
            self._drafter.append(parent, [own.token])
        return parent


def _is_waited_for(tree: GuessTree) -> bool:
    return not tree.is_stale and not tree.context.is_reading


def _sorted(nodes: Iterable[Open]) -> list[Open]:
    return sorted(nodes, key=lambda one: -one[0])
