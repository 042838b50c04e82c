"""Read a Hugging Face causal LM from its files."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from app.errors import ModelRefused


def read(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model in `folder`: out of safetensors only, none of its own code, and whole. Raises ModelRefused."""
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
