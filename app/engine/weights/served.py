"""Refuse unsupported models by their configuration, before any weight is read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.errors import ModelRefused

# Tools that quantise write their settings into config.json, or beside it.
QUANTISED_FILES = ("hf_quant_config.json", "quant_config.json", "quantize_config.json")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")  # by family
OF_EXPERTS = re.compile(r"moe|mixtral", re.IGNORECASE)  # in the names of families whose defaults have experts


def check_served(folder: Path, config: dict[str, Any]) -> None:
    """Raise ModelRefused for quantised weights other than GGUF's, and for mixtures of experts."""
    if (how := _quantised_as(folder, config)) is not None:
        raise ModelRefused(
            f"{folder} holds weights quantised as {how}; supported are safetensors in float32, float16 or bfloat16, "
            "and GGUF files"
        )
    if _has_experts(config):
        raise experts_refused(folder)


def experts_refused(model: Path) -> ModelRefused:
    return ModelRefused(
        f"{model} is a mixture of experts; supported are dense models: Llama, Mistral, Qwen2 and Qwen3, and on a CPU "
        "other dense families, too"
    )


def _quantised_as(folder: Path, config: dict[str, Any]) -> str | None:
    for part in _parts(config):
        found = part.get("quantization_config")
        if found:
            return str(found.get("quant_method") or "unnamed") if isinstance(found, dict) else "unnamed"
    return next((f"{name} says" for name in QUANTISED_FILES if (folder / name).is_file()), None)


def _has_experts(config: dict[str, Any]) -> bool:
    counts = [part.get(name) for part in _parts(config) for name in EXPERTS]
    if any(isinstance(count, int) and count > 1 for count in counts):
        return True
    names = config.get("architectures")
    named = [config.get("model_type"), *(names if isinstance(names, list) else [])]
    return any(OF_EXPERTS.search(name) for name in named if isinstance(name, str))


def _parts(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield config
    yield from (part for part in config.values() if isinstance(part, dict))
