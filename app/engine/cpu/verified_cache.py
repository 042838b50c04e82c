"""What was found out of a fused model at its first start, kept for the next: it then needs nothing but its weights.

Importing transformers and running a model's own modules takes longer than all the rest of a start. So the blueprint is
kept, and some of what the modules said: a forward made of it that says something else is not used.
"""

import hashlib
import logging
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from app.engine.cpu.equivalence import TOLERANCE, distance, trial
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.model_spec import ModelSpec
from app.engine.weights.tensors import Weights
from app.system import write_whole

log = logging.getLogger(__name__)
COLUMNS = 64  # of each row of the logits, from all over the vocabulary


class VerifiedModel(BaseModel):
    """Of one model, with its weights as they are or rounded to int8."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    blueprint: ModelSpec
    names: tuple[str, ...]  # of the modules' weights: files may hold others, which the modules do not read
    said: tuple[tuple[float, ...], ...]  # (N, COLUMNS) logits of the trial, by the model's own modules
    spread: float  # standard deviation of all of them


def recall(file: Path, weights: Weights, is_int8: bool) -> FusedForward | None:
    """The forward of the model that `file` was written of; None if nothing is known, or it no longer holds."""
    try:
        known = VerifiedModel.model_validate_json(_intact(file.read_text()))
        forward = FusedForward(known.blueprint, {name: weights[name] for name in known.names}, is_int8)
        off = distance(_sample(trial(forward)), torch.tensor(known.said), known.spread)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        log.warning("%s cannot be used, looking at the model's modules again: %s", file, error)
        return None
    if not off < TOLERANCE:
        log.warning("the model is %.1e deviations off what its modules said once: looking at them again", off)
        return None
    return forward


def remember(file: Path, blueprint: ModelSpec, names: tuple[str, ...], expected: torch.Tensor) -> None:
    """Keep what the modules, whose weights have these names, said in the trial, `expected` (N, V)."""
    said = _sample(expected).tolist()
    text = VerifiedModel(blueprint=blueprint, names=names, said=said, spread=float(expected.std())).model_dump_json()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, f"{_checksum(text)}\n{text}")
    except OSError as error:  # a full disk: the next start finds it out again
        log.warning("what is known of the model cannot be kept: %s", error)


def _intact(text: str) -> str:
    """What stands below its checksum: sizes that are wrong would be read past the weights' ends. Raises ValueError."""
    checksum, _, rest = text.partition("\n")
    if checksum != _checksum(rest):
        raise ValueError("it is damaged")
    return rest


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sample(logits: torch.Tensor) -> torch.Tensor:
    """(N, up to COLUMNS) of (N, V)."""
    return logits[:, :: max(1, logits.shape[1] // COLUMNS)][:, :COLUMNS].float()
