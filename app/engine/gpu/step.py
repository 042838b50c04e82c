"""Launch a forward, and each wanted row's token in one tensor to read back."""

from dataclasses import dataclass

import torch

from app.engine.gpu.input_batch import RowTensors
from app.engine.gpu.layers import Method, Pages, forward
from app.engine.gpu.weights import Weights
from kernels.sampling.choices import RowChoices
from kernels.sampling.target_token_batch import target_token_batch


@dataclass(frozen=True, slots=True)
class StepOutput:
    logits: torch.Tensor  # (N, V)
    chosen: torch.Tensor  # (2, N) int32: tokens, and the bits of their log-probabilities


def run(weights: Weights, pages: Pages, rows: RowTensors, method: Method) -> StepOutput:
    logits = forward(weights, pages, rows, method)
    return StepOutput(logits, choose(logits, rows.choices))


def choose(logits: torch.Tensor, choices: RowChoices) -> torch.Tensor:
    """Return the target's tokens for logits (N, V): (2, N) int32, as `StepOutput.chosen`."""
    chosen = target_token_batch(logits, choices)
    return torch.stack((chosen.tokens, chosen.logprobs.view(torch.int32)))
