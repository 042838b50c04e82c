"""Choose the fastest forward that gives the same logits as a model's own modules."""

import logging
import time

import torch
from transformers import PreTrainedModel

from app.config import Activations, WeightsAs
from app.engine.cpu.equivalence import TOLERANCE, distance, trial
from app.engine.cpu.forward import Forward
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.hooked import HookedForward, keep_bits, round_weights
from app.engine.cpu.model_spec import model_spec_of
from app.engine.cpu.packed_model import pack_model
from app.engine.cpu.verified_cache import VerifiedCache
from app.engine.weights.blocks import Weights
from app.engine.weights.families import NotFusable, check_llama_shape, is_llama_shaped
from app.engine.weights.rounding import weights_as
from app.engine.weights.tensors import holds
from app.errors import NoIntegerProducts
from app.logs import STARTING

log = logging.getLogger(__name__)


@torch.inference_mode()
def fuse_in_turn(
    model: PreTrainedModel, weights: Weights, cache: VerifiedCache | None, activations: Activations
) -> FusedForward | None:
    """Return the fused forward if it gives the logits of modules that read `weights` in turn, else None."""
    STARTING.info("comparing with its modules")
    hooked = HookedForward(model.eval().requires_grad_(False))
    try:
        return _fuse(hooked, weights, cache, activations)
    except NotFusable:
        return None


@torch.inference_mode()
def choose_forward(
    model: PreTrainedModel,
    wanted: WeightsAs = "stored",
    weights: Weights | None = None,
    cache: VerifiedCache | None = None,
    activations: Activations = "float32",
) -> Forward:
    """Return the fused forward if it supports the model's family, else the modules, made to keep rows' bits.

    `weights`: as the files hold them; the modules' own if different. `cache` keeps what is found. The model must not
    be used afterwards. Raises ModelRefused for a model that ignores the attention interface, NoIntegerProducts for int8
    activations of an unfused one.
    """
    STARTING.info("comparing with its modules")
    model.eval()
    model.requires_grad_(False)
    modules = model.state_dict()
    is_readable = weights is not None and is_llama_shaped(model) and holds(weights, modules)
    given = {name: weights[name] for name in modules} if weights is not None and is_readable else modules
    round_weights(model, wanted)
    hooked = HookedForward(model)
    try:
        return _fuse(hooked, weights_as(given, wanted), cache if is_readable else None, activations)
    except NotFusable as reason:
        if activations == "int8":
            raise NoIntegerProducts(f"PACELINE_ACTIVATIONS=int8 needs the compiled forward: {reason}") from reason
        log.info("%s runs on its own modules: %s", type(model).__name__, reason)
    keep_bits(model)
    return hooked


def _fuse(
    hooked: HookedForward, weights: Weights, cache: VerifiedCache | None, activations: Activations
) -> FusedForward:
    check_llama_shape(hooked.model)
    if hooked.model.device.type not in ("cpu", "meta"):  # the latter: its modules read their weights in turn
        raise NotFusable("the model is not on the CPU")
    expected = trial(hooked, passes=1)  # also shows how each layer attends
    spec = model_spec_of(hooked)
    started = time.perf_counter()
    packed = pack_model(spec, weights, activations)
    took_s = time.perf_counter() - started
    fused = FusedForward(spec, packed)
    off = distance(trial(fused), expected, float(expected.std()))
    if not off < TOLERANCE[activations]:
        raise NotFusable(f"the compiled forward's logits are {off:.1e} standard deviations off")
    if cache is not None:
        cache.remember(spec, tuple(weights), expected)
        cache.keep(packed, took_s)
    return fused
