"""Cache a fused model's spec, with some of the modules' logits as a check."""

from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from app.config import Activations, WeightsAs
from app.engine.cpu.equivalence import TOLERANCE, distance, trial
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.model_spec import ModelSpec
from app.engine.weights.blocks import Weights
from app.engine.weights.model_cache import read_cached, write_cached
from app.engine.weights.rounding import weights_as

COLUMNS = 64  # of each row of the logits, from all over the vocabulary


class VerifiedModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: ModelSpec
    names: tuple[str, ...]  # of the modules' weights: files may hold others, which the modules do not read
    logits: tuple[tuple[float, ...], ...]  # (N, COLUMNS) of the trial, by the model's own modules
    spread: float  # standard deviation of all of them


def recall(file: Path, weights: Weights, wanted: WeightsAs, activations: Activations) -> FusedForward | None:

    def build(text: str) -> FusedForward:
        known = VerifiedModel.model_validate_json(text)
        forward = FusedForward(
            known.spec, weights_as({name: weights[name] for name in known.names}, wanted), activations
        )
        off = distance(_sample(trial(forward)), torch.tensor(known.logits), known.spread)
        if not off < TOLERANCE[activations]:
            raise ValueError(f"the forward's logits are {off:.1e} standard deviations off those of the model's modules")
        return forward

    return read_cached(file, build)


def remember(file: Path, spec: ModelSpec, names: tuple[str, ...], expected: torch.Tensor) -> None:
    """`expected`: the modules' logits (N, V) float32 in the trial; names: of their weights."""
    known = VerifiedModel(spec=spec, names=names, logits=_sample(expected).tolist(), spread=float(expected.std()))
    write_cached(file, known.model_dump_json())


def _sample(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, :: max(1, logits.shape[1] // COLUMNS)][:, :COLUMNS].float()
