"""Write tiny models as GGUF files, as llama.cpp's converter does."""

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

from app.engine.weights.gguf_file import IN_LAYER, WHOLE
from tests.kernels.cpu.products import test_formats
from tests.kernels.cpu.products.test_integer_products import with_halves

STORED_AS = {module: stored for stored, module in {**WHOLE, **IN_LAYER}.items()}
FALL_BACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}  # llama.cpp's, for rows that are no whole blocks
SPREADS = {"Q4_K": (258.0, 7.5), "Q5_K": (525.0, 15.5), "Q6_K": (1365.0, 0.0)}  # of random blocks with d = 1; dmin
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,!?"


def write(
    model: PreTrainedModel,
    file: Path,
    kinds: tuple[str, ...],
    *,
    pre: str = "gpt-2",
    tables: dict[str, np.ndarray] | None = None,
    **fields: object,
) -> dict[str, np.ndarray]:
    """Write a model with its matrices in these types by turns; return what they stand for, by the modules' names.

    A matrix whose rows are no whole number of blocks is of another type, as llama.cpp's are. One in K types, for
    which gguf has no rounding, is random. `tables`: more tensors, by the file's names; `fields`: more of the
    header.
    """
    config = model.config
    architecture = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}[config.model_type]
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if (head_dim := getattr(config, "head_dim", None)) is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    tokens = [*LETTERS.replace(" ", "Ġ"), "ab"]
    tokens += [f"<{i}>" for i in range(len(tokens), config.vocab_size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    for name, value in fields.items():
        key = name.replace("__", ".")
        match value:
            case int():
                writer.add_uint16(key, value)
            case float():
                writer.add_float32(key, value)
            case _:
                writer.add_string(key, str(value))
    for name, table in (tables or {}).items():
        writer.add_tensor(name, table)
    meant, matrices = {}, 0
    for name, weight in model.state_dict().items():
        values = weight.float().numpy()
        kind = "F32"
        if values.ndim == 2:
            kind = kinds[matrices % len(kinds)]
            kind = FALL_BACK.get(kind, kind) if values.shape[1] % 256 else kind
            kind = "F16" if kind.startswith("Q") and values.shape[1] % 32 else kind
            matrices += 1
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if architecture == "llama" and heads:
            rows = len(values)
            values = values.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)
        raw, values = _as(kind, values)
        if architecture == "llama" and heads:
            values = values.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
        meant[name] = values
        writer.add_tensor(_stored(name), raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def _as(kind: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a tensor's bytes in a type, and the float32 that they stand for."""
    if kind == "F32":
        return np.ascontiguousarray(values, np.float32), values
    named = gguf.GGMLQuantizationType[kind]
    raw = _random(kind, values) if kind in SPREADS else gguf.quants.quantize(np.ascontiguousarray(values), named)
    return raw, gguf.quants.dequantize(raw, named).astype(np.float32)


def _random(kind: str, values: np.ndarray) -> np.ndarray:
    """Return the rows of a random weight (N, K) with about the spread of these values."""
    raw = test_formats.raw(kind, *values.shape, np.random.default_rng(len(values)))
    spread, minimum = SPREADS[kind]
    d = float(values.std()) / spread
    blocks = raw.reshape(len(values), values.shape[1] // 256, -1)
    return with_halves(kind, blocks, d, d * minimum).reshape(raw.shape)


def _stored(name: str) -> str:
    """Return the tensor's name of a module's."""
    stem, _, kind = name.rpartition(".")
    if stem in STORED_AS:
        return f"{STORED_AS[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{STORED_AS[rest]}.{kind}"


def as_tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))
