"""Models that no forward computes are refused in one sentence that says what is served."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.engine.weights.resolve import resolve
from app.errors import ModelRefused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder that passes as a model, once it has a config.json."""
    made = tmp_path / "model"
    made.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (made / name).touch()
    return made


def resolved(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return resolve(str(folder), folder, lambda text: None)


def refusal(folder: Path, **config: Any) -> str:
    with pytest.raises(ModelRefused) as found:
        resolved(folder, **config)
    return str(found.value)


@pytest.mark.parametrize("method", ["fp8", "awq", "gptq", "compressed-tensors"])
def test_quantised_weights_are_refused(folder: Path, method: str) -> None:
    expected = (
        f"{folder} holds weights quantised as {method}; supported are safetensors in float32, float16 or bfloat16, "
        "and GGUF files"
    )
    assert refusal(folder, quantization_config={"quant_method": method, "bits": 4}) == expected
    assert refusal(folder, text_config={"quantization_config": {"quant_method": method}}) == expected


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quant_config.json", "quantize_config.json"])
def test_quantised_weights_that_a_file_beside_tells_of_are_refused(folder: Path, name: str) -> None:
    resolved(folder)
    (folder / name).write_text("{}")
    assert f"quantised as {name} says; supported are" in refusal(folder)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mixtral", "num_local_experts": 8},
        {"model_type": "qwen3_moe", "num_experts": 128},
        {"model_type": "deepseek_v3", "n_routed_experts": 256},
        {"model_type": "llama4", "text_config": {"num_local_experts": 16}},
        {"model_type": "gpt_oss", "num_local_experts": 32},
        {"model_type": "dbrx", "ffn_config": {"moe_num_experts": 16}},
        {"model_type": "olmoe"},  # as many as the family has by default
        {"architectures": ["MixtralForCausalLM"]},
    ],
)
def test_mixtures_of_experts_are_refused(folder: Path, config: dict[str, Any]) -> None:
    assert refusal(folder, **config) == (
        f"{folder} is a mixture of experts; supported are dense models: Llama, Mistral, Qwen2 and Qwen3, and on a CPU "
        "other dense families, too"
    )


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": None},
        {"quantization_config": {}},
        {"num_experts": None, "num_local_experts": 0},
        {"num_experts": 1},
        {"text_config": {"hidden_size": 8}, "architectures": ["Qwen3ForCausalLM"]},
    ],
)
def test_dense_models_pass(folder: Path, config: dict[str, Any]) -> None:
    assert resolved(folder, **config) == folder
