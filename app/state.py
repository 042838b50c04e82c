"""State that lives in one process: a sequence as its verifier sees it, trees, verdicts, batches of work, guesses.

Letters for shapes, everywhere: B sequences, N tree nodes, T packed rows, V vocabulary, L layers,
H query heads, HK key heads, D head dim, P pages, S tokens a page.
"""

from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from app.messages import TARGET, Record, Stats
from app.request import TokenLogprobs

Change = tuple[list[float], list[float]]  # to decaying sums: (kept, added); each becomes sum * kept + added


@dataclass(slots=True)
class Tree:
    """Fused drafts. Node i >= 1 is tokens[i - 1]; node 0 is the root. Nodes by falling survival, parents first,
    so every prefix of the lists is a tree of its own: cutting to the n best is a slice."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    survival: list[float] = field(default_factory=list)
    proposers: list[tuple[str, ...]] = field(default_factory=list)
    confidence: dict[str, float] = field(default_factory=dict)  # of each drafter in its own draft, on average
    skipped: tuple[str, ...] = ()  # drafters that were asked and not run

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, nodes: int) -> "Tree":
        """The tree of the first `nodes` nodes."""
        return Tree(self.tokens[:nodes], self.parents[:nodes], self.survival[:nodes], self.proposers[:nodes])


@dataclass(slots=True)
class Verdict:
    """What the target said about one tree: the accepted nodes root to leaf, and the tokens to commit."""

    path: list[int]  # accepted nodes, from 1; empty when no draft token was right
    tokens: list[int]  # tokens on the path, then the target's own next token
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of each token, if the request wants them
    state: bytes | None = None  # the target's last hidden state where it chose that token, d float16
    error: str | None = None  # why the target can say nothing more; then `tokens` are those on the path alone

    def proposers(self, tree: Tree) -> list[str]:
        """Who proposed each of `tokens`: the most confident drafter behind it, or the target."""
        return [tree.proposers[node - 1][0] for node in self.path] + [TARGET]


class Stops(Protocol):
    """A request's stop strings (`app.engine.text.stop_strings`)."""

    def first(self, generated: list[int], run: Listed[int], *, is_end: bool) -> int | None: ...


class Grammar(Protocol):
    """The form of a request's answer (`app.engine.text.grammar`)."""

    def mask(self, generated: Listed[int]) -> np.ndarray | None: ...


@dataclass(slots=True)
class Sequence:
    """A request as its verifier runs it. tokens = prompt + committed; KV covers the first `cached` of them."""

    record: Record
    tokens: list[int]
    stats: Stats = field(default_factory=Stats)
    cached: int = 0
    pages: list[int] = field(default_factory=list)
    tree: Tree | None = None  # arrived for the present length, not yet verified
    due_s: float = 0.0  # when the sequence goes on without a tree; 0: it waits for none
    state: bytes | None = None  # the target's last hidden state where it chose the last token, d float16
    page_names: list[bytes] = field(default_factory=list)  # of its first full pages (`app.engine.kv.prefix_hash`)
    stops: Stops | None = None
    grammar: Grammar | None = None

    @property
    def generated(self) -> int:
        """Tokens committed after the prompt."""
        return len(self.tokens) - len(self.record.prompt_ids)

    @property
    def uncached(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return len(self.tokens) - self.cached

    def mask(self, history: Listed[int]) -> np.ndarray | None:
        """(V,) bool: the tokens its grammar allows after `history`, prompt included. None: without a grammar all; and
        after what the grammar does not allow, where the target never comes. Raises GenerationFailed where nothing can
        follow."""
        return None if self.grammar is None else self.grammar.mask(history[len(self.record.prompt_ids) :])


@dataclass(slots=True)
class BatchEntry:
    """One sequence's rows in a batch: tokens from `start` on, then the nodes of `tree` below the last of them.

    `final` says that the rows reach the sequence's end, so the target's token is wanted at the last row
    and at every node; otherwise the work is a chunk of a prompt. `forks` is filled when pages are reserved.

    The forward may drop nodes whose survival, as it sees it on its way, is below `floor`, and what is below them: they
    count as not right. It notes them in `pruned`, each with that survival.
    """

    sequence: Sequence
    start: int
    tokens: list[int]
    tree: Tree
    final: bool
    forks: list["Fork"] = field(default_factory=list)
    floor: float = 0.0
    pruned: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Fork:
    """A side branch of a tree: `path` leads from below the root to a leaf, and the nodes from `first` on are its own.

    The branch leaves the main one at `path[leaves]`; the nodes from there to `first` belong to an earlier fork too.
    All from `leaves` on live in `pages`, copies of the sequence's last pages: so every branch looks like a plain
    chain, and a row's sums are added in the same order as they would be in one.
    """

    path: list[int]  # nodes, root excluded
    leaves: int  # index into path of the first node that is not on the main branch
    first: int  # index into path of the first node no earlier branch computed
    pages: list[int] = field(default_factory=list)


class Guess(NamedTuple):
    """A drafter's model's best and second best next token, with the probability it gives each."""

    token: int
    confidence: float
    second: int
    second_confidence: float
