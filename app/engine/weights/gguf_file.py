"""Read a Llama-shaped model's GGUF tensors under Hugging Face's names."""

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.engine.weights.blocks import Blocks, Weight
from app.engine.weights.gguf_header import field, opened
from app.errors import ModelRefused

WHOLE = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "output_norm": "model.norm",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32}
READ = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")  # gguf dequantises them as ggml does
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
DRAFTER = "paceline-drafter"  # the architecture of a file whose tensors have the modules' names already
PERMUTED = ("llama",)  # architectures whose rows of q and k the file has in another order


def types(file: Path) -> set[str]:
    """Raises ModelRefused for a damaged file."""
    return {tensor.tensor_type.name for tensor in opened(file).tensors}


def readers(file: Path) -> dict[str, Callable[[], Weight]]:
    """Map module names to readers of weights. Raises ModelRefused for a damaged file."""
    reader = opened(file)
    architecture = str(field(reader, file, "general.architecture"))
    in_order = sorted(reader.tensors, key=lambda tensor: int(tensor.data_offset))
    for one, after in pairwise(in_order):
        if int(one.data_offset) + int(one.n_bytes) > int(after.data_offset):
            raise ModelRefused(f"{file}: {one.name} is {one.tensor_type.name} and overlaps {after.name}")
    if architecture == DRAFTER:
        return {tensor.name: partial(_read, tensor, file, None) for tensor in reader.tensors}
    heads = int(field(reader, file, f"{architecture}.attention.head_count"))
    key_heads = int(field(reader, file, f"{architecture}.attention.head_count_kv", heads))
    is_turned = architecture in PERMUTED
    found: dict[str, Callable[[], Weight]] = {}
    for tensor in reader.tensors:
        name = _name(tensor.name)
        if name is None:
            continue  # tables of frequencies, which the config has
        turned = {"q_proj": heads, "k_proj": key_heads}.get(name.split(".")[-2]) if is_turned else None
        found[name] = partial(_read, tensor, file, turned)
    return found


def _name(stored: str) -> str | None:
    stem, _, kind = stored.rpartition(".")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{kind}"
    match = LAYER.fullmatch(stored)
    if match is None or match[2] not in IN_LAYER:
        return None
    return f"model.layers.{match[1]}.{IN_LAYER[match[2]]}.{match[3]}"


def _read(tensor: Any, file: Path, heads: int | None) -> Weight:
    """Return a tensor; with `heads`, row 2 i + j of a head, j = 0 or 1, becomes the modules' row j D / 2 + i."""
    kind = tensor.tensor_type.name
    shape = [int(size) for size in reversed(tensor.shape)]
    if not all(shape) or heads is not None and shape[0] % (2 * heads):
        raise ModelRefused(f"{file}: {tensor.name} has the shape {shape}, which no layer has")
    data = np.asarray(tensor.data)
    if heads is not None:
        data = data.reshape(heads, shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(data.shape)
    if kind in PLAIN:
        return torch.from_numpy(np.array(data).view(np.uint8).reshape(-1)).view(PLAIN[kind]).reshape(shape)
    if len(shape) != 2 or kind not in READ:
        raise ModelRefused(f"{file}: {tensor.name} is {kind} with {len(shape)} dimensions, which is not supported")
    return Blocks(kind, np.ascontiguousarray(data).reshape(shape[0], -1), shape[1])
