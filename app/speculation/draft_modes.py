"""Estimate what drafts take and bring, with models and by model-free drafters alone."""

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from app.messages import Record
from app.speculation.acceptance import AcceptanceEstimate, AcceptanceEstimates, levels
from app.speculation.draft_costs import DraftCosts, TableCosts
from app.speculation.guard import Guard
from app.state import Tree

Round = tuple[Record, Tree, Listed[int], bool]  # with the tokens after the tree's root; True: no model drafted
Costs = TypeVar("Costs")


@dataclass(frozen=True, slots=True)
class DraftMode(Generic[Costs]):
    """The estimates of one mode: its seconds, and the tokens it gets right."""

    costs: Costs
    expectations: AcceptanceEstimates = field(default_factory=AcceptanceEstimates)

    def of(self, record: Record) -> AcceptanceEstimate:
        return self.expectations.of(record.id, record.tenant)


class DraftModes:
    def __init__(self) -> None:
        self.with_models: Final = DraftMode(DraftCosts())
        self.model_free: Final = DraftMode(TableCosts())
        self.guard: Final = Guard()

    def remove(self, request_id: str) -> None:
        self.with_models.expectations.remove(request_id)
        self.model_free.expectations.remove(request_id)
        self.guard.remove(request_id)

    def update(self, rounds: Iterable[Round], model_free: Collection[str]) -> None:
        """Learn from trees; those of models also show what the part of these drafters alone would have been."""
        for record, tree, committed, is_model_free in rounds:
            drafted, accepted = found = levels(tree, committed)
            if not is_model_free:
                self.with_models.of(record).update(drafted, accepted)
            part = tree if is_model_free else tree.of(model_free)
            drafted, accepted = found if part is tree else levels(part, committed)
            self.model_free.of(record).update(drafted or 1, accepted)  # a part without a node is a wrong token
