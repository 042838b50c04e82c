"""What was found out of a fused model at its first start, kept for the next: it then needs nothing but its weights.

Importing transformers and running a model's own modules takes longer than all the rest of a start. So the blueprint is
kept, and some of what the modules said: a forward made of it that says something else is not used.
"""

import logging
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from app.engine.blueprint import Blueprint
from app.engine.fused import FusedForward, Weights
from app.engine.trial import TOLERANCE, distance, trial
from app.files import write_whole

log = logging.getLogger(__name__)
COLUMNS = 64  # of each row of the logits, from all over the vocabulary


class Known(BaseModel):
    """Of one model, with its weights as they are or rounded to int8."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    blueprint: Blueprint
    said: tuple[tuple[float, ...], ...]  # (N, COLUMNS) logits of the trial, by the model's own modules
    spread: float  # standard deviation of all of them


def recall(file: Path, weights: Weights, is_int8: bool) -> FusedForward | None:
    """The forward of the model that `file` was written of; None if nothing is known, or it no longer holds."""
    try:
        known = Known.model_validate_json(file.read_bytes())
        forward = FusedForward(known.blueprint, weights, is_int8)
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, KeyError) as error:
        log.warning("%s cannot be used, looking at the model's modules again: %s", file, error)
        return None
    off = distance(_sample(trial(forward)), torch.tensor(known.said), known.spread)
    if not off < TOLERANCE:
        log.warning("the model is %.1e deviations off what its modules said once: looking at them again", off)
        return None
    return forward


def remember(file: Path, blueprint: Blueprint, expected: torch.Tensor) -> None:
    """Keep what the modules said in the trial, `expected` (N, V)."""
    known = Known(blueprint=blueprint, said=_sample(expected).tolist(), spread=float(expected.std()))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, known.model_dump_json())
    except OSError as error:  # a full disk: the next start finds it out again
        log.warning("what is known of the model cannot be kept: %s", error)


def _sample(logits: torch.Tensor) -> torch.Tensor:
    """(N, up to COLUMNS) of (N, V)."""
    return logits[:, :: max(1, logits.shape[1] // COLUMNS)][:, :COLUMNS].float()
