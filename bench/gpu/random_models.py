"""Make Llama-shaped models with random weights on the device, and runners over them."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from app.engine.gpu.runner import DeviceRunner
from app.engine.gpu.weights import Weights, take
from bench.gpu.setting import Setting

PAGE_TOKENS = 16
POSITIONS = 16384


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a Llama."""

    name: str
    hidden: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    inner: int
    vocab: int


ONE_B = Shape("1B", 2048, 16, 32, 8, 64, 8192, 128256)
EIGHT_B = Shape("8B", 4096, 32, 32, 8, 128, 14336, 128256)
TINY = Shape("tiny", 64, 2, 2, 1, 32, 96, 64)


def random_weights(setting: Setting, shape: Shape) -> Weights:
    """Make the weights of a random model, joined as the engine takes them."""
    weights = take(random_model(setting, shape))
    setting.free()
    return weights


def random_model(setting: Setting, shape: Shape, seed: int = 0) -> Any:
    """Make an unmodified Llama of this shape with random weights of the setting's dtype, on its device."""
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        max_position_embeddings=POSITIONS if setting.device.type == "cuda" else 512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    with setting.device:
        model: Any = AutoModelForCausalLM.from_config(config, dtype=setting.dtype, attn_implementation="sdpa")
    return silent(model)


def silent(model: Any) -> Any:
    """Set a model to run without gradients, greedily, and without an end token; return it."""
    model.eval().requires_grad_(False)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.generation_config.do_sample = False
    return model


def runner_of(weights: Weights, tokens: int, **rest: Any) -> DeviceRunner:
    """Make a runner whose cache holds `tokens`, in whole pages."""
    pages = -(-tokens // PAGE_TOKENS)
    return DeviceRunner(weights, kv_bytes=pages * PAGE_TOKENS * weights.token_bytes, page_tokens=PAGE_TOKENS, **rest)


def room(sequences: int, tokens: int) -> int:
    """Return the cache tokens to hold sequences of `tokens` each, with a last page half empty."""
    return sequences * (tokens + PAGE_TOKENS)
