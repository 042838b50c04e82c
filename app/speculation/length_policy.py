"""Define the interface of all rules of draft lengths: a batch in, a decision out."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from app.engine.step_costs import StepCosts
from app.speculation.draft_costs import DraftCosts
from app.speculation.draft_modes import DraftModes
from app.speculation.marginal import Candidate
from app.state import Tree


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """Sequences that go into their next round together, and the bounds on what they may ask for.

    `busy_s`, `core_share`, `tree_s`: see `app.speculation.marginal.DraftPrice`. `prompts_s`: seconds of a step of
    the prompts alone that wait to be read, which the verifier makes while it waits for drafts.
    """

    candidates: list[Candidate]  # with all drafters
    model_free: list[Candidate] | None  # with model-free drafters alone; None where there is only one of the two
    has_models: bool  # whether any of the drafters of `candidates` is a model
    lengths: Mapping[str, int]  # tokens of each sequence, by request
    costs: StepCosts
    now_s: float  # monotonic
    busy_s: float = 0.0
    prompts_s: float = 0.0
    core_share: float = 0.0
    tree_s: float = 0.0
    least: int = 0  # draft tokens that each sequence asks for, whatever their expected gain
    load: int = 0  # sequences of the verifier, those not in this batch included


@dataclass(frozen=True, slots=True)
class LengthDecision:
    """Hold the draft tokens for each candidate, and the mode.

    `worth_s`: how long the drafts may take before going on without them is faster. `split`: the number of the
    machine's split to use from now on (`app.placement.splits`).
    """

    depths: list[int]
    is_model_free: bool = False
    worth_s: float = inf
    split: int = 0


class DraftSeconds(Protocol):
    """Tell the seconds of drafting: `DraftCosts`, or a part of them."""

    def seconds(self, batch: int, depth: int) -> float:
        """Return the seconds for `batch` sequences of at most `depth` tokens each."""
        ...


class LengthSearch(Protocol):
    """Find draft lengths under given costs without changing anything: a length policy of several looks a decision."""

    def update(self, committed: Mapping[str, int]) -> None:
        """Learn from the tokens that requests committed since the last choice for them."""
        ...

    def search(self, candidates: Mapping[str, Candidate], costs: StepCosts, drafting: DraftSeconds) -> list[int]:
        """Return each candidate's best length."""
        ...

    def record(self, lengths: Mapping[str, int]) -> None:
        """Record the lengths that are asked for."""
        ...


class LengthPolicy(Protocol):
    """Decide how many draft tokens each sequence of a batch asks for: the rule of a baseline."""

    @property
    def drafters(self) -> int | None:
        """Return how many model drafters may take part in a round; None: as many as routing may ask."""
        ...

    def depths(
        self,
        candidates: Mapping[str, Candidate],
        costs: StepCosts,
        drafting: DraftCosts,
        now_s: float,
        committed: Mapping[str, int],
    ) -> list[int]:
        """Return each candidate's draft length; candidates go by request.

        `committed`: tokens of a request since the last decision for it; `now_s`: monotonic.
        """
        ...


class LengthPlanner(Protocol):
    """Decide batch after batch how many tokens are drafted for each sequence."""

    @property
    def modes(self) -> DraftModes:
        """Return the estimates that it decides by."""
        ...

    @property
    def drafters(self) -> int | None:
        """Return how many model drafters may take part in a round; None: as many as routing may ask."""
        ...

    def plan(self, batch: DraftBatch) -> LengthDecision:
        """Decide for one batch."""
        ...

    def trim(self, tree: Tree) -> Tree:
        """Reduce a fused tree to what the verifier may choose from."""
        ...
