"""Load a Llama-shaped causal LM onto a GPU, and check its forward."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from app.engine.cpu.equivalence import probe
from app.engine.gpu.memory import DeviceMemory
from app.engine.gpu.runner import DeviceRunner
from app.engine.gpu.weights import Weights, take
from app.engine.weights.families import NotFusable
from app.errors import ModelRefused
from app.state import BatchEntry, Tree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
CHECK_TOKENS = 40
PAGE_TOKENS = 16
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # mean error in deviations of the logits


def load_weights(folder: Path, device: torch.device, dtype: torch.dtype) -> Weights:
    # transformers takes seconds to import, and a CPU mostly needs none of it
    from app.engine.weights.hf_reader import read

    model: Any = read(folder, dtype)
    move(model, device)
    return checked_weights(model)


def move(model: Any, device: torch.device) -> None:
    if device.type == "cuda":
        memory = DeviceMemory(device)
        memory.settle()
        needed, free = sum(one.nbytes for one in (*model.parameters(), *model.buffers())), memory.free_bytes()
        if needed > free:
            raise ModelRefused(
                f"{type(model).__name__} needs {needed / 1e9:.1f} GB, the GPU has {free / 1e9:.1f} GB free; "
                "one model is served by one GPU"
            )
    model.to(device)


@torch.inference_mode()
def checked_weights(model: "PreTrainedModel") -> Weights:
    """Raises ModelRefused if the forward's logits differ from the modules'."""
    model.eval()
    model.requires_grad_(False)
    try:
        weights = take(model)
    except NotFusable as reason:
        raise ModelRefused(f"{type(model).__name__} cannot run on a GPU: {reason}; on a CPU it can") from reason
    off = _distance(model, weights)
    if not off < TOLERANCE[weights.embedding.dtype]:
        raise ModelRefused(f"the GPU's logits are {off:.1e} standard deviations off those of the model's modules")
    log.info("%s on %s: %.1e deviations off its own modules", type(model).__name__, model.device, off)
    return weights


def _distance(model: "PreTrainedModel", weights: Weights) -> float:
    sequence = probe(CHECK_TOKENS, model.config.get_text_config().vocab_size)
    pages = -(-CHECK_TOKENS // PAGE_TOKENS)
    kv_bytes = pages * PAGE_TOKENS * weights.token_bytes
    runner = DeviceRunner(weights, kv_bytes=kv_bytes, page_tokens=PAGE_TOKENS, has_graphs=False)
    half = CHECK_TOKENS // 2
    first = BatchEntry(sequence, 0, sequence.tokens[:half], Tree(), final=False)
    runner.try_reserve(first)
    runner.forward([first])
    root, *rest = sequence.tokens[half:]
    chain = Tree(rest, list(range(len(rest))), [1.0] * len(rest), [("probe",)] * len(rest))  # so that all are wanted
    work = BatchEntry(sequence, half, [root], chain, final=True)
    runner.try_reserve(work)
    found = runner.forward([work])[0]
    assert found is not None
    whole: Any = model
    expected = whole(torch.tensor([sequence.tokens], device=model.device), use_cache=False).logits[0, half:].float()
    return float((found.rows.float() - expected).abs().mean() / expected.std())
