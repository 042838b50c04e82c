"""Read a Hugging Face causal LM from its files. Imports transformers, which takes seconds."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from app.config import WeightsAs
from app.engine.weights.blocks import EMBEDDING, HEAD, Weights, dense, shape_of, take
from app.engine.weights.rounding import weights_as
from app.engine.weights.tensors import Stored
from app.errors import ModelRefused


def read(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Read from safetensors or GGUF only, without the model's own code, and whole. Raises ModelRefused."""
    transformers_logging.disable_progress_bar()
    if any(folder.glob("*.gguf")):
        return _from_gguf(folder, dtype)
    try:
        found: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{folder} does not hold a loadable causal LM: {error}") from error
    model: PreTrainedModel = found[0]
    if missing := sorted(found[1]["missing_keys"]):  # they would be random numbers
        raise ModelRefused(f"{folder} lacks {len(missing)} weights, {missing[0]} among them")
    return model


def _from_gguf(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    stored = Stored(folder)
    weights = {name: dense(stored[name], dtype) for name in stored if name != HEAD or not stored.is_head_tied}
    weights.setdefault(HEAD, weights[EMBEDDING])
    return build(folder, weights)


def build(folder: Path, weights: Mapping[str, torch.Tensor]) -> PreTrainedModel:
    """Build the model that config.json in `folder` describes; `lm_head.weight` may be shorter: (Vh, d). Raises
    ModelRefused.
    """
    model = _without_weights(folder, weights)
    model.load_state_dict(dict(weights), assign=True)
    return model


def build_in_turn(folder: Path, weights: Weights, wanted: WeightsAs = "stored") -> PreTrainedModel:
    """Build the same, each of whose modules has its weights, as float32, only while it runs. Raises ModelRefused."""
    model, given = _without_weights(folder, weights), weights_as(weights, wanted)
    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_pre_hook(partial(_fill, given, name))
            module.register_forward_hook(_empty)
    return model


def _fill(weights: Weights, at: str, module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
    if isinstance(module, nn.Embedding):  # a large table, of which few rows are read
        rows, table = given[0].unique(), torch.zeros(module.weight.shape)
        table[rows] = dense(take(weights[f"{at}.weight"], rows.numpy()))
        module.load_state_dict({"weight": table}, assign=True)
        return
    module.load_state_dict({name: dense(weights[f"{at}.{name}"]) for name in module.state_dict()}, assign=True)


def _empty(module: nn.Module, *_: object) -> None:
    module.to("meta")


def _without_weights(folder: Path, weights: Weights) -> PreTrainedModel:
    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
    rows, width = shape_of(weights[HEAD])
    if width != config.hidden_size:
        raise ModelRefused(f"{folder} was distilled from another target: its width is {config.hidden_size}")
    config.tie_word_embeddings = False
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.lm_head = nn.Linear(width, rows, bias=False, device="meta")
    expected, found = set(model.state_dict()), set(weights)
    if expected != found:
        missing, unexpected = sorted(expected - found), sorted(found - expected)
        raise ModelRefused(f"{folder}: weights missing {missing[:3]}, not expected {unexpected[:3]}")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are computed, not stored
    built: PreTrainedModel = model
    return built
