"""What was found out of a fused model at its first start, kept for the next: it then needs nothing but its weights.

Importing transformers and running a model's own modules takes longer than all the rest of a start. So the blueprint is
kept, and some of what the modules said: a forward made of it that says something else is not used.
"""

from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from app.engine.cpu.equivalence import TOLERANCE, distance, trial
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.model_spec import ModelSpec
from app.engine.weights.model_cache import read_cached, write_cached
from app.engine.weights.tensors import Weights

COLUMNS = 64  # of each row of the logits, from all over the vocabulary


class VerifiedModel(BaseModel):
    """Of one model, with its weights as they are or rounded to int8."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    blueprint: ModelSpec
    names: tuple[str, ...]  # of the modules' weights: files may hold others, which the modules do not read
    said: tuple[tuple[float, ...], ...]  # (N, COLUMNS) logits of the trial, by the model's own modules
    spread: float  # standard deviation of all of them


def recall(file: Path, weights: Weights, is_int8: bool) -> FusedForward | None:
    """Build the forward of the model that `file` was written of; None if that no longer holds."""

    def build(text: str) -> FusedForward:
        known = VerifiedModel.model_validate_json(text)
        forward = FusedForward(known.blueprint, {name: weights[name] for name in known.names}, is_int8)
        off = distance(_sample(trial(forward)), torch.tensor(known.said), known.spread)
        if not off < TOLERANCE:
            raise ValueError(f"the forward is {off:.1e} deviations off what the model's modules gave")
        return forward

    return read_cached(file, build)


def remember(file: Path, blueprint: ModelSpec, names: tuple[str, ...], expected: torch.Tensor) -> None:
    """Keep the spec, and what the modules whose weights have these names gave in the trial: `expected` (N, V)."""
    said = _sample(expected).tolist()
    known = VerifiedModel(blueprint=blueprint, names=names, said=said, spread=float(expected.std()))
    write_cached(file, known.model_dump_json())


def _sample(logits: torch.Tensor) -> torch.Tensor:
    """(N, up to COLUMNS) of (N, V)."""
    return logits[:, :: max(1, logits.shape[1] // COLUMNS)][:, :COLUMNS].float()
