"""Learn the two modes of drafting apart: with models, or with model-free drafters alone.

Model-free drafters cost next to nothing and models do not, so each mode has its own costs and its
own estimates of acceptance, and every round with models also shows what the model-free part of its
tree would have been alone.
"""

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from typing import Final

from app.messages import Record
from app.speculation.acceptance import AcceptanceEstimate, AcceptanceEstimates, levels
from app.speculation.draft_costs import DraftCosts
from app.state import Tree

Round = tuple[Record, Tree, Listed[int], bool]  # with the tokens after the tree's root; True: no model drafted


@dataclass(frozen=True, slots=True)
class DraftMode:
    """Hold the estimates of one mode: the seconds it takes, and the tokens it gets right."""

    costs: DraftCosts = field(default_factory=DraftCosts)
    expectations: AcceptanceEstimates = field(default_factory=AcceptanceEstimates)

    def of(self, record: Record) -> AcceptanceEstimate:
        """Return the estimate of acceptance for this request."""
        return self.expectations.of(record.id, record.tenant)


class DraftModes:
    """Keep the estimates of both modes in step with the rounds of all sequences."""

    def __init__(self) -> None:
        self.with_models: Final = DraftMode()
        self.model_free: Final = DraftMode()
        self.guessing: Final = DraftCosts(0.0)  # of tokens that models had not guessed ahead, by the fuser's clock

    def use(self, split: int) -> None:
        """Give the costs of drafting with models under this split of the machine, and learn them, from now on."""
        self.with_models.costs.use(split)
        self.guessing.use(split)

    def expect(self, split: int, slowdown: float) -> None:
        """Expect models to take `slowdown` times as long under a split, until some are seen there."""
        self.with_models.costs.expect(split, slowdown)
        self.guessing.expect(split, slowdown)

    def remove(self, request_id: str) -> None:
        """Remove an ended request; its tenant's prior stays."""
        self.with_models.expectations.remove(request_id)
        self.model_free.expectations.remove(request_id)

    def update(self, rounds: Iterable[Round], model_free: Collection[str]) -> None:
        """Learn from what came of trees. `model_free`: the drafters that are no models."""
        for record, tree, committed, is_model_free in rounds:
            drafted, accepted = found = levels(tree, committed)
            if not is_model_free:
                self.with_models.of(record).update(drafted, accepted)
            part = tree.of(model_free)
            drafted, accepted = found if part is tree else levels(part, committed)
            self.model_free.of(record).update(drafted or 1, accepted)  # a part without a node is a wrong token

    def update_costs(
        self,
        batch: int,
        depth: int,
        seconds: float,
        unread: int,
        *,
        share: float = 1.0,
        is_beside: bool = False,
        is_bound: bool = False,
        is_model_free: bool,
        skipped: Listed[str] = (),
    ) -> None:
        """Learn that drafts took `seconds`, deciding included. See `DraftCosts.update`.

        `skipped`: models that were not run, a round which does not show what models take.
        """
        if is_model_free:
            self.model_free.costs.update(batch, depth, seconds, share=share)
        elif not skipped:
            self.with_models.costs.update(
                batch, depth, seconds, unread, share=share, is_beside=is_beside, is_bound=is_bound
            )
