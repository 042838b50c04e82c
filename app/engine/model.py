"""Load a Hugging Face causal LM, unforked, and choose the fastest forward that says the same as its own modules."""

import logging
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from app.engine.forward import Forward
from app.engine.fused import fuse, round_weights
from app.engine.hooked import HookedForward, pack_linears
from app.engine.llama import NotFusable
from app.engine.read import read
from kernels.packed_linear import can_pack

log = logging.getLogger(__name__)


def load(folder: Path, is_int8: bool = False) -> Forward:
    """Load the model in `folder`, to compute in float32. Raises ModelRefused."""
    transformers_logging.disable_progress_bar()
    return prepare(read(folder, torch.float32), is_int8)


@torch.inference_mode()
def prepare(model: PreTrainedModel, is_int8: bool = False) -> Forward:
    """The fused forward if it knows the model's family, else the model's own modules with packed linear layers.

    With `is_int8` the linear layers' weights are rounded to int8 columns: a model of its own, as exact against itself.
    Takes the model over. Raises ModelRefused for one that ignores the attention interface.
    """
    model.eval()
    model.requires_grad_(False)
    if is_int8:
        round_weights(model)
    hooked = HookedForward(model)
    try:
        return fuse(hooked, is_int8)
    except NotFusable as reason:
        log.info("%s runs on its own modules: %s", type(model).__name__, reason)
    if can_pack():
        pack_linears(model)
    else:
        log.warning("this torch has no packed linear operator: plain ones are used, slower and not bitwise invariant")
    return hooked
