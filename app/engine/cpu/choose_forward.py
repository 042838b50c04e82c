"""Choose the fastest forward that gives the same logits as a model's own modules.

Goes in: a loaded transformers model; comes out: a Forward. Knows no files but the one it may keep
its findings in.
"""

import logging
from pathlib import Path

import torch
from transformers import PreTrainedModel

from app.engine.cpu.equivalence import TOLERANCE, distance, trial
from app.engine.cpu.forward import Forward
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.hooked import HookedForward, keep_bits, round_weights
from app.engine.cpu.model_spec import model_spec_of
from app.engine.cpu.verified_cache import remember
from app.engine.weights.families import NotFusable, check_llama_shape, is_llama_shaped
from app.engine.weights.tensors import Weights, holds

log = logging.getLogger(__name__)


@torch.inference_mode()
def choose_forward(model: PreTrainedModel, is_int8: bool = False, keep: tuple[Path, Weights] | None = None) -> Forward:
    """Return the fused forward if it knows the model's family, else the modules, whose rows keep
    their bits.

    With `is_int8` the linear layers' weights are rounded to int8 columns: a model of its own, as
    exact against itself. `keep`: a file for what is found out, and the weights as they will be read
    then; nothing is written where those are not the modules'. The model must not be used
    afterwards. Raises ModelRefused for one that ignores the attention interface.
    """
    model.eval()
    model.requires_grad_(False)
    file = _where(model, keep)
    if is_int8:
        round_weights(model)
    hooked = HookedForward(model)
    try:
        return _fuse(hooked, is_int8, file)
    except NotFusable as reason:
        log.info("%s runs on its own modules: %s", type(model).__name__, reason)
    keep_bits(model)
    return hooked


def _where(model: PreTrainedModel, keep: tuple[Path, Weights] | None) -> Path | None:
    """Return the file to write; None where a later start would read other numbers than the
    modules'."""
    if keep is None:
        return None
    file, weights = keep
    return file if is_llama_shaped(model) and holds(weights, model.state_dict()) else None


def _fuse(hooked: HookedForward, is_int8: bool, file: Path | None) -> FusedForward:
    """Return the fused forward, once it has given the modules' logits. Raises NotFusable."""
    check_llama_shape(hooked.model)
    if hooked.model.device.type != "cpu":
        raise NotFusable("it is not on the CPU")
    weights = hooked.model.state_dict()
    expected = trial(hooked)  # also shows how each layer attends
    spec = model_spec_of(hooked)
    fused = FusedForward(spec, weights, is_int8)
    off = distance(trial(fused), expected, float(expected.std()))
    if not off < TOLERANCE:
        raise NotFusable(f"the fused forward is {off:.1e} standard deviations off")
    if file is not None:
        remember(file, spec, tuple(weights), expected)
    return fused
