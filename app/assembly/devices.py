"""Load the target on the device that the settings name, size its KV cache, and divide the machine."""

import json
import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from app.config import Settings
from app.engine.cpu.forward import Forward
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.load import load
from app.engine.cpu.packed_model import packed_once
from app.engine.cpu.runner import ModelRunner
from app.engine.early_exit.controller import EarlyExitController
from app.engine.early_exit.rank_test import RankTest, load_rank_test
from app.engine.kv.pages import bytes_per_page
from app.engine.kv.sizing import (
    CPU_PART,
    GPU_PART,
    PAGE_TOKENS,
    SLACK_TOKENS,
    available_bytes,
    kv_bytes,
    longest_tokens,
)
from app.engine.weights.resolve import drafter_folder
from app.engine.weights.tensors import end_loading
from app.errors import InstanceError, ModelRefused
from app.logs import STARTING
from app.placement.partition import Partition, cores, divided_cores, units_of
from app.placement.splits import PreparedSplits
from app.policy import MOST_BATCH_TOKENS

if TYPE_CHECKING:
    from app.engine.gpu.runner import DeviceRunner
    from app.engine.vllm.target import VLLMTarget

log = logging.getLogger(__name__)
AnyRunner: TypeAlias = "ModelRunner | DeviceRunner | VLLMTarget"
MAX_SEQUENCES = {"cpu": 64, "cuda": 256}  # by the target's device, where the settings have none
CHUNK_TOKENS = {"cpu": 0, "cuda": 2048}  # of prompts in a step at least; 0: what the policy says


def max_sequences(settings: Settings) -> int:
    return settings.max_sequences or MAX_SEQUENCES[device_of(settings).type]


def forget_files(*folders: Path) -> None:
    packed_once.cache_clear()  # its key is the embedding as its file has it
    end_loading(*folders)


def target_runner(folder: Path, settings: Settings, context_tokens: int) -> AnyRunner:
    """Load the target in `folder`, which can read `context_tokens`. Raises ModelRefused."""
    device = device_of(settings)
    request_tokens = longest_tokens(context_tokens, settings)
    longest = request_tokens + SLACK_TOKENS
    runner: AnyRunner
    if settings.kv_dtype != "float32" and (settings.engine == "vllm" or device.type != "cpu"):
        raise ModelRefused(f"PACELINE_KV_DTYPE={settings.kv_dtype} applies to Paceline's engine for CPUs only")
    if settings.engine == "vllm":
        longest = min(longest, context_tokens)  # vLLM runs no sequence beyond it
        runner = _on_vllm(folder, settings, longest, device)
    elif device.type == "cpu":
        runner = _on_cpu(folder, settings, longest)
    else:
        runner = _on_gpu(folder, settings, longest, device)
    if runner.capacity_tokens < longest:
        raise ModelRefused(
            f"PACELINE_KV_BYTES={settings.kv_bytes} holds {runner.capacity_tokens} tokens, "
            f"fewer than one request of {request_tokens} and its drafts; raise PACELINE_KV_BYTES, or lower "
            "PACELINE_MAX_PROMPT_TOKENS or PACELINE_MAX_TOKENS"
        )
    return runner


def pruning(runner: AnyRunner, folder: Path, settings: Settings) -> EarlyExitController:
    """Set up early exit for the runner, if the settings have it and the rank test fits this target.

    Raises ModelRefused.
    """
    plan = settings.plan
    if plan.pruning == "off" or plan.pruner == "none":
        return EarlyExitController()
    if not isinstance(runner, ModelRunner) or not isinstance(runner.model, FusedForward):
        log.info("this target's forward drops no rows on its way")
        return EarlyExitController()
    test = _rank_test(drafter_folder(plan.pruner), folder)
    if test is None:
        return EarlyExitController()
    runner.predictor = test
    return EarlyExitController(plan.pruning, test.checkpoints[0].rest, lambda: runner.exits)


@lru_cache(maxsize=2)
def _rank_test(folder: Path, target: Path) -> RankTest | None:
    return load_rank_test(folder, target)


def sides_of(settings: Settings) -> Partition:
    """Divide the cores of a process that verifies and drafts, or the GPU's multiprocessors if both run there.

    Raises InstanceError, ModelRefused.
    """
    drafting = draft_device(settings)
    if drafting.type == "cuda" == device_of(settings).type:
        from app.engine.gpu.sm_partition import divided  # see _on_gpu

        return divided(drafting, units_of(settings))
    return divided_cores(units_of(settings))


def core_splits(runner: AnyRunner, models: Sequence[Forward]) -> PreparedSplits:
    """Prepare to give drafters' models none, a quarter or half of the cores, and the target of `runner` the others.

    Raises InstanceError where cores cannot be divided, or a model's threads cannot be moved.
    """
    draft = [model for model in models if isinstance(model, FusedForward)]
    if not isinstance(runner, ModelRunner) or not isinstance(runner.model, FusedForward) or len(draft) < len(models):
        raise InstanceError('a plan of partition = "auto" needs models that run compiled on CPUs')
    count = len(cores())
    parts = sorted({0, max(1, count // 4), count // 2})
    return PreparedSplits({units: divided_cores(units, [runner.model], draft) for units in parts})


def draft_device(settings: Settings) -> torch.device:
    if settings.draft_device == "cuda" and not torch.cuda.is_available():
        raise ModelRefused("PACELINE_DRAFT_DEVICE=cuda, but torch sees no GPU")
    return torch.device(settings.draft_device)


def on_another_device(settings: Settings) -> bool:
    return (settings.draft_device == "cuda") != _wants_gpu(settings)


def leave_cores_to(*models: Forward) -> None:
    if all(isinstance(model, FusedForward) for model in models):
        torch.set_num_threads(1)


def device_of(settings: Settings) -> torch.device:
    """Raises ModelRefused."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ModelRefused("PACELINE_DEVICE=cuda, but torch sees no GPU")
    return torch.device("cuda" if _wants_gpu(settings) else "cpu")


def _wants_gpu(settings: Settings) -> bool:
    return settings.device == "cuda" or (settings.device == "auto" and torch.cuda.is_available())


def _on_cpu(folder: Path, settings: Settings, longest: int) -> ModelRunner:
    torch.set_num_threads(settings.verify_threads)
    STARTING.info("reading weights")
    model = load(folder, settings.weights, settings.home, settings.activations)
    leave_cores_to(model)
    pages = -(-longest // PAGE_TOKENS)
    sequence_bytes = pages * bytes_per_page(*model.shape, PAGE_TOKENS, settings.kv_dtype)
    free = available_bytes()
    if free is not None and isinstance(model, FusedForward):
        free -= model.mapped_bytes
    size = settings.kv_bytes or kv_bytes(free, 1 / CPU_PART, sequence_bytes, max_sequences(settings))
    shares, kv_dtype = settings.prefix_cache, settings.kv_dtype
    return ModelRunner(model, kv_bytes=size, page_tokens=PAGE_TOKENS, shares=shares, kv_dtype=kv_dtype)


def _on_gpu(folder: Path, settings: Settings, longest: int, device: torch.device) -> "DeviceRunner":
    if settings.activations != "float32":
        raise ModelRefused("PACELINE_ACTIVATIONS=int8 applies to CPUs only")
    if settings.weights in ("q8_0", "q4_0"):
        raise ModelRefused(f"PACELINE_WEIGHTS={settings.weights} applies to CPUs only; a GPU has PACELINE_GPU_DTYPE")
    # Triton takes a third of a second to import and tens of megabytes, which a CPU needs none of.
    from app.engine.gpu.load import load_weights
    from app.engine.gpu.memory import DeviceMemory, free_for_pages
    from app.engine.gpu.runner import DeviceRunner

    STARTING.info("reading weights")
    weights = load_weights(folder, device, getattr(torch, settings.gpu_dtype))

    def rehearsed(size: int) -> DeviceRunner:
        runner = DeviceRunner(
            weights,
            kv_bytes=size,
            page_tokens=PAGE_TOKENS,
            shares=settings.prefix_cache,
            is_exact=settings.gpu_exact,
            longest_tokens=longest,
            max_sequences=max_sequences(settings),
        )
        STARTING.info("warming up")
        runner.rehearse(MOST_BATCH_TOKENS)
        return runner

    memory = DeviceMemory(device)
    memory.settle()
    if settings.kv_bytes:
        return rehearsed(settings.kv_bytes)
    free = free_for_pages(memory, lambda: rehearsed(0))
    return rehearsed(kv_bytes(free, GPU_PART, longest * weights.token_bytes, max_sequences(settings)))


def _on_vllm(folder: Path, settings: Settings, longest: int, device: torch.device) -> "VLLMTarget":
    if settings.activations != "float32" or settings.weights != "stored":
        raise ModelRefused(
            "PACELINE_ENGINE=vllm reads weights as the model's files have them, and does not round products"
        )
    from app.engine.vllm.load import is_quantised, load_target  # vLLM is in an environment of its own

    STARTING.info("starting vLLM")

    def size(sequence_bytes: int) -> int:
        return settings.kv_bytes or kv_bytes(available_bytes(), 1 / CPU_PART, sequence_bytes, max_sequences(settings))

    dtype = settings.vllm_dtype
    is_exact = dtype == "auto" and device.type == "cpu" and not is_quantised(folder)
    return load_target(
        folder,
        dtype="float32" if is_exact else dtype,
        kv_bytes=size if device.type == "cpu" or settings.kv_bytes else None,
        longest_tokens=longest,
        max_sequences=max_sequences(settings),
        batch_tokens=MOST_BATCH_TOKENS,
        shares=settings.prefix_cache,
        tensor_parallel=settings.tensor_parallel,
        pipeline_parallel=settings.pipeline_parallel,
        arguments=json.loads(settings.vllm_arguments),
    )
