"""Build drafters and their node; check their tokenizers against the target's."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from app.assembly.devices import draft_device, forget_files, leave_cores_to, on_another_device
from app.config import Settings
from app.drafter.drafter import DrafterNode
from app.drafter.model import ModelDrafter
from app.drafter.replicas import Fetch
from app.drafter.token_fusion import TokenFusion
from app.engine.drafters.forms import load_best_form
from app.engine.drafters.guesser import ModelGuesser
from app.engine.kv.sizing import PAGE_TOKENS
from app.engine.weights.drafter_files import drafter_problem
from app.engine.weights.resolve import refusing, resolve_drafter, target_folder
from app.errors import ModelRefused
from app.logs import STARTING

if TYPE_CHECKING:
    from app.engine.gpu.guesser import DeviceGuesser

log = logging.getLogger(__name__)
DRAFT_KV_BYTES = 256 * 2**20
AnyGuesser: TypeAlias = "ModelGuesser | DeviceGuesser"


def build_drafters(settings: Settings) -> list[ModelDrafter]:
    """Load the model drafters that the settings name. Raises ModelRefused."""
    return drafters_over(load_guessers(settings))


def build_drafter_node(settings: Settings, models: list[ModelDrafter], fetch: Fetch, mailbox: str) -> DrafterNode:
    """Build a node; several models guess each token together if `fusion` is `token`."""
    is_shared = settings.plan.fusion == "token" and len(models) > 1
    kvs = (model.draft_kv for model in models)
    token_fusion = TokenFusion(kvs) if is_shared else None
    return DrafterNode(models, fetch, mailbox, token_fusion)


def load_guessers(settings: Settings) -> dict[str, AnyGuesser]:
    """Load the models of the drafters that the settings name. Raises ModelRefused."""
    if settings.draft_device == "cuda" and settings.plan.placement != "together" and not on_another_device(settings):
        log.warning('two processes take turns on one GPU; a plan of placement = "together" has one for both')
    torch.set_num_threads(settings.draft_threads)
    target = target_folder(settings)
    if problems := [problem for name in settings.drafters if (problem := drafter_problem(name, target))]:
        raise ModelRefused("; ".join(problems))
    folders = [resolve_drafter(name, settings.home, log.info) for name in settings.drafters]
    found = dict(_drafter(folder, settings, target) for folder in folders)
    forget_files(target, *folders)
    leave_cores_to(*(guesser.model for guesser in found.values() if isinstance(guesser, ModelGuesser)))
    return found


def drafters_over(guessers: Mapping[str, AnyGuesser]) -> list[ModelDrafter]:
    return [
        ModelDrafter(name, guesser, guesser.max_context, guesser.reads_state, weights=guesser.weights)
        for name, guesser in guessers.items()
    ]


def _drafter(folder: Path, settings: Settings, target: Path) -> tuple[str, AnyGuesser]:
    memory = {"kv_bytes": DRAFT_KV_BYTES, "page_tokens": PAGE_TOKENS}
    device = draft_device(settings)
    STARTING.info("reading weights of %s", folder.name)
    with refusing(folder):
        if device.type == "cuda":
            dtype = getattr(torch, settings.gpu_dtype)
            from app.engine.gpu.guesser import load_device_guesser  # with Triton, which a CPU needs none of

            return folder.name, load_device_guesser(folder, target, device, dtype, **memory)
        return folder.name, load_best_form(folder, target, settings.weights, **memory, home=settings.home)
