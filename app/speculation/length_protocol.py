"""Define the interface of all rules of draft lengths: a batch in, a decision out."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from app.engine.step_costs import StepCosts
from app.speculation.draft_costs import DraftCosts
from app.speculation.draft_modes import DraftModes
from app.speculation.marginal import Candidate, DraftPrice


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """Sequences that go into their next round together, and their bounds."""

    candidates: list[Candidate]  # with all drafters
    model_free: list[Candidate] | None  # with model-free drafters alone; None where there is only one of the two
    has_models: bool  # whether any of the drafters of `candidates` is a model
    lengths: Mapping[str, int]  # tokens of each sequence, by request
    costs: StepCosts
    now_s: float  # monotonic
    busy_s: float = 0.0  # this, prompts, `core_share` and the host's: see `app.speculation.marginal.DraftPrice`
    prompt_rows: int = 0
    prompts_s: float = 0.0
    core_share: float = 0.0
    tree_s: float = 0.0
    host_s: float = 0.0
    least: int = 0  # draft tokens that each sequence asks for, whatever their expected gain
    load: int = 0  # sequences of the verifier, those not in this batch included


@dataclass(frozen=True, slots=True)
class LengthDecision:
    """The draft tokens for each candidate, and the mode."""

    depths: list[int]
    is_model_free: bool = False
    worth_s: float = inf  # seconds after which going on without drafts is faster
    split: int = 0  # of the machine (`app.placement.splits`)
    price: DraftPrice | None = None  # by which it was decided; None: nothing is learnt of the round
    is_trial: bool = False


class DraftSeconds(Protocol):
    def seconds(self, batch: int, depth: int) -> float:
        """Return the seconds for `batch` sequences of at most `depth` tokens each."""
        ...


class LengthSearch(Protocol):
    """Find draft lengths under given costs without changing anything."""

    def update(self, committed: Mapping[str, int]) -> None:
        """Learn from the tokens committed since the last choice."""
        ...

    def search(self, candidates: Mapping[str, Candidate], costs: StepCosts, drafting: DraftSeconds) -> list[int]: ...

    def record(self, lengths: Mapping[str, int]) -> None: ...


class LengthPolicy(Protocol):
    @property
    def drafters(self) -> int | None:
        """Return the most model drafters of a round; None: routing's."""
        ...

    def depths(
        self,
        candidates: Mapping[str, Candidate],
        costs: StepCosts,
        drafting: DraftCosts,
        now_s: float,
        committed: Mapping[str, int],
    ) -> list[int]:
        """Return each candidate's draft length.

        `committed`: a request's tokens since its last decision; `now_s`: monotonic.
        """
        ...


class LengthPlanner(Protocol):
    @property
    def modes(self) -> DraftModes: ...

    @property
    def drafters(self) -> int | None: ...

    def plan(self, batch: DraftBatch) -> LengthDecision: ...

    @property
    def is_tree(self) -> bool:
        """Tell whether trees are verified, or main branches alone."""
        ...
