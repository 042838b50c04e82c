"""Decide draft lengths by other rules than marginal gain (`app.speculation.marginal`), as baselines.

`fixed:N` always asks for N tokens, and so does `tree:N`. `uniform` asks for the same number for every sequence of a
batch, the best one by the costs of the marginal rule: it shows what lengths by request are worth.
`faser` and `cosine` are the papers' (`app.speculation.faser`, `cosine_control`). All of a draft is
verified: the whole tree with `tree:N` and `cosine`, else its main branch; with CoSine's batches as
much of it as their objective chooses.
"""

from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from typing import Final

from app.engine.step_costs import StepCosts
from app.speculation.cosine_lengths import CosineLength
from app.speculation.draft_costs import DraftCosts
from app.speculation.draft_modes import DraftModes
from app.speculation.faser import FaserLength
from app.speculation.length_policy import DraftBatch, DraftSeconds, LengthDecision, LengthPolicy, LengthSearch
from app.speculation.marginal import Candidate
from app.state import Tree

MAX_KNOWN = 4096  # requests whose length at the last decision is kept


def length_policy(kind: str, most_drafters: int) -> LengthPolicy | None:
    """Make a baseline length policy for rounds of at most so many model drafters; None for marginal gain."""
    name, _, number = kind.partition(":")
    rules: dict[str, LengthPolicy] = {
        "uniform": UniformLength(),
        "faser": FaserLength(),
        "cosine": CosineLength(most_drafters),
    }
    return FixedLength(int(number)) if number else rules.get(name)


def length_search(kind: str) -> LengthSearch | None:
    """Make the length policy of this kind that finds lengths under any costs; None: it has none."""
    name, _, number = kind.partition(":")
    return FixedLength(int(number)) if name == "fixed" else FaserLength() if kind == "faser" else None


class CommittedCounts:
    """Tell how many tokens requests committed from one decision to the next."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()  # tokens of each request at its last decision

    def since(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the tokens since the last call by request, of those that were in one; `lengths`: all of theirs."""
        committed = {one: length - self._known[one] for one, length in lengths.items() if one in self._known}
        for one, length in lengths.items():
            self._known[one] = length
            self._known.move_to_end(one)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return committed


class BaselineController:
    """Decide by a baseline policy; a `LengthPlanner` that weighs no part of a draft against its cost."""

    def __init__(self, policy: LengthPolicy, *, is_tree: bool = False, is_whole: bool = True) -> None:
        """Decide by `policy`. Verify trees with `is_tree`, else main branches; with `is_whole` no part is left out."""
        self.modes: Final = DraftModes()
        self._policy = policy
        self._is_tree = is_tree
        self._committed = CommittedCounts()
        self._is_whole = is_whole

    @property
    def drafters(self) -> int | None:
        """Return how many model drafters may take part in a round; None: as many as routing may ask."""
        return self._policy.drafters

    def plan(self, batch: DraftBatch) -> LengthDecision:
        """Decide for one batch; drafts of all drafters are waited for as long as the policy allows."""
        candidates = dict(zip(batch.lengths, batch.candidates, strict=True))
        depths = self._policy.depths(
            candidates, batch.costs, self.modes.with_models.costs, batch.now_s, self._committed.since(batch.lengths)
        )
        record_asked(batch.candidates, depths)
        return LengthDecision(depths)

    def trim(self, tree: Tree) -> Tree:
        """Reduce the tree to its main branch unless trees are wanted; with `is_whole` all of that is verified."""
        wanted = tree if self._is_tree else tree.chain()
        return whole(wanted) if self._is_whole else wanted


def record_asked(candidates: Listed[Candidate], depths: Listed[int]) -> None:
    """Record what each candidate is asked for."""
    for candidate, depth in zip(candidates, depths, strict=True):
        candidate.expectation.record_asked(depth)


def whole_chain(tree: Tree) -> Tree:
    """Keep the tree's main branch, all of which is to be verified."""
    return whole(tree.chain())


def whole(tree: Tree) -> Tree:
    """Return a tree all of which is to be verified."""
    survival = [1.0] * len(tree.tokens)
    return Tree(tree.tokens, tree.parents, survival, tree.proposers, tree.confidence)


class FixedLength:
    """Ask for the same number of tokens at every step."""

    drafters: Final = None

    def __init__(self, tokens: int) -> None:
        """Ask for `tokens` tokens."""
        self._tokens = tokens

    def depths(
        self,
        candidates: Mapping[str, Candidate],
        costs: StepCosts,
        drafting: DraftCosts,
        now_s: float,
        committed: Mapping[str, int],
    ) -> list[int]:
        """Return the fixed length, within each candidate's limit."""
        return self.search(candidates, costs, drafting)

    def update(self, committed: Mapping[str, int]) -> None:
        """Learn nothing."""

    def search(self, candidates: Mapping[str, Candidate], costs: StepCosts, drafting: DraftSeconds) -> list[int]:
        """Return the fixed length, within each candidate's limit."""
        return [min(self._tokens, c.limit) for c in candidates.values()]

    def record(self, lengths: Mapping[str, int]) -> None:
        """Record nothing."""


class UniformLength:
    """Ask for the one length for all that gives the most tokens a second; 0 allowed."""

    drafters: Final = None

    def depths(
        self,
        candidates: Mapping[str, Candidate],
        costs: StepCosts,
        drafting: DraftCosts,
        now_s: float,
        committed: Mapping[str, int],
    ) -> list[int]:
        """Return the best common length, within each candidate's limit."""
        batch = [*candidates.values()]
        every = range(max((c.limit for c in batch), default=0) + 1)
        return _cut(batch, min(every, key=lambda length: _token_s(batch, length, costs, drafting)))


def _cut(candidates: Listed[Candidate], length: int) -> list[int]:
    return [min(length, c.limit) for c in candidates]


def _token_s(candidates: Listed[Candidate], length: int, costs: StepCosts, drafting: DraftCosts) -> float:
    """Return seconds a token if all asked for so many, by the costs and estimates."""
    depths = _cut(candidates, length)
    tokens = sum(1.0 + sum(c.expectation.survival(depth)) for c, depth in zip(candidates, depths, strict=True))
    verify_s = costs.seconds(len(candidates) + sum(depths))
    verify_s += costs.reading.step_s((c.context, 1 + depth) for c, depth in zip(candidates, depths, strict=True))
    return (verify_s + drafting.seconds(sum(depth > 0 for depth in depths), max(depths, default=0))) / tokens
