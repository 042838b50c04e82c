"""Describe the target as its verifier knows it: the model's runner and the measurements around it."""

from dataclasses import dataclass

from app.engine.early_exit.controller import EarlyExitController
from app.engine.target import Target
from app.estimates.step_costs import StepCosts


@dataclass(frozen=True, slots=True)
class MeasuredTarget:
    """A target with the cost of its steps, its vocabulary, and what leaves its passes early."""

    target: Target
    costs: StepCosts  # corrected with each step
    vocab_size: int
    early_exit: EarlyExitController
