"""Define the state that lives in one process.

What is made for each sequence in each step is a `msgspec.Struct`, made in a third of a dataclass's time.

Letters for shapes, everywhere: B sequences, N tree nodes, T packed rows, V vocabulary, L layers, H query heads, HK key
heads, D head dim, P pages, S tokens a page.
"""

from array import array
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from itertools import compress
from math import isfinite
from operator import le
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy as np

from app.messages import PUBLIC_TENANT, TARGET, Record, Stats, TreeMessage
from app.request import Sampling, TokenLogprobs

MAX_NODES = 63  # of a tree; with the root, one 64-bit word of ancestors a node
MAX_SCORED = 1 + MAX_NODES  # prompt tokens of an entry whose tokens are scored
CHAIN = [*range(MAX_NODES)]  # the parents of a tree without branches, as most are

# (V,) bool: the tokens allowed after every token so far, prompt included; None: all. Raises GenerationFailed where
# nothing can follow.
Mask = Callable[[Listed[int]], np.ndarray | None]


def page_numbers() -> "array[int]":
    """Make an empty int32 list, which is copied into a step's arrays at once."""
    return array("i")


class Walk(NamedTuple):
    path: list[int]  # from 1; one for each token, up to the first wrong place
    alternatives: list[list[int]]  # at each place up to and including the first wrong one: all its nodes


class Tree(msgspec.Struct, gc=False):
    """A sequence's fused drafts, immutable. Node i >= 1 is tokens[i - 1]; node 0, the root, has no entry.

    Nodes stand by falling survival, parents first, so every prefix of the lists is a tree. Parts of a tree keep the
    round's `confidence`.
    """

    tokens: list[int] = []
    parents: list[int] = []
    survival: list[float] = []
    proposers: list[tuple[str, ...]] = []
    confidence: dict[str, float] = {}  # of each drafter in its own draft, on average

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def from_message(cls, message: TreeMessage, vocab_size: int) -> "Tree | None":
        """Read a tree from mail; None if it is not sound."""
        m, size = message, len(message.tokens)
        if not size == len(m.parents) == len(m.survival) == len(m.proposers) <= MAX_NODES:
            return None
        tokens, parents, survival, proposers = [*m.tokens], [*m.parents], [*m.survival], [*m.proposers]
        is_sound = not size or (
            min(tokens) >= 0
            and max(tokens) < vocab_size
            and (parents == CHAIN[:size] or (min(parents) >= 0 and all(map(le, parents, range(size)))))
            and (isfinite(sum(survival)) or all(map(isfinite, survival)))  # finite values may add up to infinity
            and () not in proposers
        )
        if not is_sound:
            return None
        return cls(tokens, parents, survival, proposers, m.confidence)

    @property
    def is_chain(self) -> bool:
        return self.parents == CHAIN[: len(self.parents)]

    def main_branch(self) -> list[int]:
        if self.is_chain:
            return [*range(1, len(self.parents) + 1)]
        branch: list[int] = []
        tip = 0
        for node, parent in enumerate(self.parents, start=1):
            if parent == tip:
                branch.append(node)
                tip = node
        return branch

    def chain(self) -> "Tree":
        return self if self.is_chain else self.keep(self.main_branch())

    def depths(self) -> list[int]:
        """Count each node's steps from the root, beginning with the root's own 0."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths

    def path(self, node: int) -> list[int]:
        path = []
        while node:
            path.append(node)
            node = self.parents[node - 1]
        return path[::-1]

    def child(self, node: int, token: int) -> int | None:
        parents, tokens = self.parents, self.tokens
        for i in range(node, len(tokens)):  # children stand behind their parent
            if tokens[i] == token and parents[i] == node:
                return i + 1
        return None

    def walk(self, tokens: Listed[int]) -> Walk:
        path: list[int] = []
        alternatives: list[list[int]] = [[]] if tokens else []
        places = {0: 0} if tokens else {}  # by the root and each right node: the place of its children
        for node, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True), start=1):
            place = places.get(parent)
            if place is None:
                continue
            alternatives[place].append(node)
            if token == tokens[place] and place == len(path):
                path.append(node)
                if place + 1 < len(tokens):
                    places[node] = place + 1
                    alternatives.append([])
        return Walk(path, alternatives)

    def by_proposer(self, right: Collection[int]) -> dict[str, tuple[int, int]]:
        if (lone := self._lone_proposer()) is not None:
            return {lone: (len(self.proposers), len(right))}
        found: dict[str, tuple[int, int]] = {}
        for node, proposers in enumerate(self.proposers, start=1):
            for name in proposers:
                nodes, good = found.get(name, (0, 0))
                found[name] = nodes + 1, good + (node in right)
        return found

    def keep(self, nodes: Iterable[int]) -> "Tree":
        """Copy nodes, as far as their parents are among them, and renumber them."""
        places = {0: 0}
        for node in sorted(nodes):
            if self.parents[node - 1] in places:
                places.setdefault(node, len(places))
        kept = [node - 1 for node in places if node]
        return Tree(
            [self.tokens[i] for i in kept],
            [places[self.parents[i]] for i in kept],
            [self.survival[i] for i in kept],
            [self.proposers[i] for i in kept],
            self.confidence,
        )

    def of(self, drafters: Collection[str]) -> "Tree":
        if self._lone_proposer() in drafters:
            return self
        theirs = frozenset(drafters)
        is_theirs = [not theirs.isdisjoint(names) for names in self.proposers]
        return self if all(is_theirs) else self.keep(compress(range(1, len(self) + 1), is_theirs))

    def _lone_proposer(self) -> str | None:
        proposers = self.proposers
        is_lone = proposers and len(proposers[0]) == 1 and proposers.count(proposers[0]) == len(proposers)
        return proposers[0][0] if is_lone else None

    def cut(self, nodes: int) -> "Tree":
        if nodes >= len(self.tokens):
            return self
        return Tree(
            self.tokens[:nodes],
            self.parents[:nodes],
            self.survival[:nodes],
            self.proposers[:nodes],
            self.confidence,
        )


NO_TREE: Final = Tree()


class Verdict(msgspec.Struct, gc=False):
    path: list[int]  # accepted nodes, from 1; empty when no draft token was right
    tokens: list[int]  # tokens on the path, then the target's own next token
    logprobs: list[TokenLogprobs] = []  # of each token, if the request wants them
    state: bytes | None = None  # the target's last hidden state where it chose that token, d float16
    error: str | None = None  # why no token follows; then `tokens` are the path's alone
    cut: int | None = None  # the right node that the path ends above because it left the pass early

    def proposers(self, tree: Tree) -> list[str]:
        """Name each token's most confident drafter, or the target."""
        proposers = tree.proposers
        return [*[proposers[node - 1][0] for node in self.path], TARGET]


class Stops(Protocol):
    def first(self, tokens: Listed[int], start: int, run: Listed[int], *, is_end: bool) -> int | None:
        """Return the index into `run` of the token that completes a stop string, or None.

        `run` follows `tokens`, in which the answer begins at `start`.
        """
        ...


class Grammar(Protocol):
    def mask(self, generated: Listed[int]) -> np.ndarray | None:
        """Return the tokens that may follow, (V,) bool; None where `generated` is not allowed."""
        ...

    def is_free(self, generated: int) -> bool:
        """Tell whether nothing is forbidden behind so many tokens, whatever they are."""
        ...


@dataclass(slots=True)
class CachedSequence:
    """A sequence as engine and drafters see it, the first `cached` of its tokens with KV.

    `app.engine.kv` alone writes `cached`, `pages`, `named` and `page_names`.
    """

    id: str
    tokens: list[int]  # prompt + committed; a drafter's may end with guesses
    sampling: Sampling = field(default_factory=Sampling)
    tenant: str = PUBLIC_TENANT
    logprobs: int | None = None  # the request wants log-probabilities, and those of so many likeliest tokens
    state: bytes | None = None  # the target's last hidden state where it chose the last token, d float16
    cached: int = 0
    pages: "array[int]" = field(default_factory=page_numbers)
    named: int = 0  # of its pages, those whose names the pool has been told
    page_names: list[bytes] = field(default_factory=list)  # of its first full pages (`app.engine.kv.prefix_hash`)

    @classmethod
    def of(cls, record: Record, tokens: list[int]) -> "CachedSequence":
        return cls(record.id, tokens, record.sampling, record.tenant, record.logprobs)

    @property
    def uncached(self) -> int:
        return len(self.tokens) - self.cached


@dataclass(slots=True)
class Sequence:
    record: Record
    kv: CachedSequence
    stats: Stats = field(default_factory=Stats)
    stops: Stops | None = None
    grammar: Grammar | None = None
    tree: Tree | None = None  # arrived for the present length, not yet verified
    expected_s: float = 0.0  # wall clock when the tree that it waits for is expected,
    due_s: float = 0.0  # and when it goes on without one; 0: it waits for none
    asked: int = 0  # draft tokens of that tree
    scores: dict[int, TokenLogprobs] = field(default_factory=dict)  # of prompt tokens, by their places
    last_token_s: float | None = None  # wall clock when the target chose its last token; None: it has none
    is_over: bool = False  # its last token is chosen; only its commit is still to be heard of
    age: tuple[float, str] = field(init=False)  # sorts the oldest first

    def __post_init__(self) -> None:
        self.age = self.record.created_s, self.record.id

    @property
    def tokens(self) -> list[int]:
        return self.kv.tokens

    @property
    def generated(self) -> int:
        return len(self.kv.tokens) - len(self.record.prompt_ids)

    @property
    def cached(self) -> int:
        return self.kv.cached

    @property
    def uncached(self) -> int:
        kv = self.kv
        return len(kv.tokens) - kv.cached

    def entry(self, end: int, tree: Tree | None = None) -> "BatchEntry":
        """Make a batch entry of the uncached tokens up to `end`, and a tree below the last."""
        kv = self.kv
        tokens, cached = kv.tokens, kv.cached
        return BatchEntry(
            kv,
            cached,
            tokens[cached:end],
            NO_TREE if tree is None else tree,
            final=end == len(tokens),
            eos_ids=self.record.eos_ids,
            mask=None if self.grammar is None or self.grammar.is_free(self.generated) else self._mask,
        )

    @property
    def is_scored(self) -> bool:
        """Tell whether the prompt's log-probabilities are wanted, and not yet committed."""
        return self.record.prompt_logprobs is not None and not self.generated

    def chunk(self, end: int) -> "BatchEntry":
        """Make a batch entry of the prompt's uncached tokens up to `end`, or of fewer where each one is scored.

        Scored tokens are a path below the first, so that each has a row of logits.
        """
        kv, start = self.kv, self.kv.cached
        last = min(end, start + MAX_SCORED, len(kv.tokens) - 1)  # the prompt's last token begins the answer
        if not self.is_scored or last == start:
            return self.entry(end)
        path = kv.tokens[start + 1 : last]
        tree = Tree(path, CHAIN[: len(path)], [1.0] * len(path), [(TARGET,)] * len(path))
        return BatchEntry(kv, start, kv.tokens[start : start + 1], tree, final=True, scores=self.record.prompt_logprobs)

    def _mask(self, history: Listed[int]) -> np.ndarray | None:
        return None if self.grammar is None else self.grammar.mask(history[len(self.record.prompt_ids) :])


class Prompts(NamedTuple):
    """What a step reads of the prompts that wait, if it has nothing else."""

    rows: int
    seconds: float
    ends: int  # prompts that it reads to their end


NO_PROMPTS: Final = Prompts(0, 0.0, 0)


class BatchEntry(msgspec.Struct, gc=False):
    """One sequence's rows in a batch: tokens from `start` on, then the nodes of `tree` below.

    `final`: the rows reach the sequence's end, so tokens are wanted at the last row and at every node; else they are a
    prompt's chunk. With `may_exit` the forward may drop nodes, and those below them: they count as wrong, and are
    listed in `pruned`.
    """

    sequence: CachedSequence
    start: int
    tokens: list[int]
    tree: Tree
    final: bool
    eos_ids: tuple[int, ...] = ()  # the verdict ends at any of these
    mask: Mask | None = None  # of the request's grammar
    forks: list["Fork"] = []
    scores: int | None = None  # likeliest tokens wanted beside the log-probability of each token; None: no scores
    may_exit: bool = False
    pruned: set[int] = set()

    @property
    def silent(self) -> int:
        """Count the rows without logits."""
        return len(self.tokens) - self.final


@dataclass(slots=True)
class Fork:
    """A side branch of a tree: the nodes of `path`, which ends at a leaf, from `first` on are its own.

    The nodes from `leaves` on, where it leaves the main branch, to `first` belong to an earlier fork. All from
    `leaves` on live in `pages`, copies of the sequence's last pages: every branch is laid out as a plain chain, and a
    row's sums are added in the same order as in one.
    """

    path: list[int]  # nodes, root excluded
    leaves: int  # index into path of the first node that is not on the main branch
    first: int  # index into path of the first node no earlier branch computed
    pages: "array[int]" = field(default_factory=page_numbers)


class Guess(NamedTuple):
    token: int
    confidence: float
    second: int
    second_confidence: float
    further: tuple[tuple[int, float], ...] = ()  # the third choice and later ones with their confidences
