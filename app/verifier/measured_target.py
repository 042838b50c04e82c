"""Bundle the target with the measurements that its verifier decides by."""

from dataclasses import dataclass

from app.engine.early_exit.controller import EarlyExitController
from app.engine.step_costs import StepCosts
from app.engine.target import Target


@dataclass(frozen=True, slots=True)
class MeasuredTarget:
    target: Target
    costs: StepCosts  # corrected with each step
    vocab_size: int
    early_exit: EarlyExitController
    chunk_tokens: int = 0  # of prompts in a step, where the policy has fewer
