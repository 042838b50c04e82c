"""Name whole ways of speculating: each plan says by which strategy every stage decides.

Data only. The setting `plan` chooses one, and settings of the same name as a field replace that part
of it. Benchmarks and simulation read the same plans, so a result is what a deployment would do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from app.config import Batching, Fusion, Placement, PlanName, Pruning, Routing, Settings
from app.scheduler.objective import Objective


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole way of speculating, by the names of its strategies (see the settings of the same names)."""

    routing: Routing
    fusion: Fusion
    lengths: str
    batching: Batching
    overlap: str
    pruning: Pruning = "off"
    model_free: bool = False  # whether model-free drafters draft
    placement: Placement = "apart"  # what `up` starts
    drafters_per_sequence: int = 4  # model drafters of a round at most, where several can be asked
    objective: Objective = Objective()  # of CoSine's batches; no setting of its own
    states: bool = False  # whether jobs carry the target's hidden state to drafters that read it; no setting of its own

    @property
    def drafts(self) -> bool:
        """Tell whether any drafter is ever asked."""
        return self.lengths != "fixed:0"

    @property
    def drafts_whole(self) -> bool:
        """Tell whether drafters draft all that a rule asks for, however unlikely it is.

        Tokens that several drafters share are never drafted so.
        """
        return (":" in self.lengths or self.lengths == "faser") and self.fusion == "tree"


PLANS: Mapping[PlanName, Plan] = {
    "pace": Plan(
        routing="learned",
        fusion="tree",
        lengths="marginal",
        batching="pace",
        overlap="auto",
        model_free=True,
        states=True,
    ),
    # CoSine (arXiv:2503.10325): every token shared by nodes, routed by a matrix of scores, lengths by the verifier's
    # idleness, batches by its objective, one drafted while another is verified where two take no longer than one.
    "cosine": Plan(
        routing="cosine",
        fusion="token",
        lengths="cosine",
        batching="cosine",
        objective=Objective(token_weight=1.0, max_s=1.0, max_candidates=64),
        overlap="auto",
        placement="nodes",
    ),
    # FASER (arXiv:2604.20503): a length for each request, early exit by its rank test where that pays, and one
    # controller of lengths, chunk and split.
    "faser": Plan(
        routing="first",
        fusion="tree",
        lengths="faser",
        batching="pace",
        overlap="joint",
        pruning="auto",
    ),
    # SpecInfer (arXiv:2305.09781): all drafters guess apart, and the union of their guesses is verified.
    "specinfer": Plan(routing="all", fusion="tree", lengths="tree:4", batching="pace", overlap="none"),
    # Speculative decoding as first published (arXiv:2211.17192): one drafter, chains of one length.
    "vanilla": Plan(routing="first", fusion="tree", lengths="fixed:4", batching="pace", overlap="none"),
    "off": Plan(routing="first", fusion="tree", lengths="fixed:0", batching="pace", overlap="none"),
}


def plan_of(settings: Settings) -> Plan:
    """Return the settings' plan, with the parts that single settings replace."""
    return replace(PLANS[settings.plan], **overrides(settings))


def overrides(settings: Settings) -> dict[str, Any]:
    """Return the parts of the plan that single settings replace, by name."""
    parts = {part.name: getattr(settings, part.name, None) for part in fields(Plan)}
    return {name: value for name, value in parts.items() if value is not None}
