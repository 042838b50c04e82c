"""Pack a model's weights for the fused forward."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from app.config import Activations
from app.engine.cpu.model_spec import ModelSpec
from app.engine.weights.blocks import EMBEDDING, HEAD, Blocks, Weight, Weights, dense, shape_of
from app.errors import NoIntegerProducts
from kernels.cpu import shapes
from kernels.cpu.products.integer_formats import INTEGER_FORMATS
from kernels.cpu.products.pack import STORED, pack, pack_bias, pack_stored
from kernels.cpu.products.row_blocks import DENSE, ROUNDED, SCALED
from kernels.cpu.simd import LANES

COMPARED_ROWS = 2048  # at a time
TYPES = {torch.bfloat16: "BF16", torch.float16: "F16"}  # ggml's names


class Packed(NamedTuple):
    array: np.ndarray
    kind: str = "F32"
    columns: int = 0  # of a linear layer
    row_form: int = DENSE  # that its kernel takes (`kernels.cpu.products.row_blocks`)


PackedModel = dict[str, Packed]


def slot_name(layer: int, slot: int) -> str:
    return f"layers.{layer}.{slot}"


def pack_model(spec: ModelSpec, weights: Weights, activations: Activations) -> PackedModel:
    """Pack the weights in their own types, or as float32. Raises KeyError for a missing one, ValueError for its shape.

    int8 `activations` round the rows of integer weights: another target. Raises NoIntegerProducts if no weight is of
    integers.
    """
    blocks = ROUNDED if activations == "int8" else SCALED
    found: PackedModel = {}
    for layer in range(spec.num_layers):
        found |= {slot_name(layer, slot): one for slot, one in _layer(spec, weights, layer, blocks).items()}
    of_head = weights[HEAD]  # once: it may be rounded when it is read
    found["head"] = head = _linear(of_head, shape_of(of_head)[0], spec.hidden, blocks)
    found["embedding"] = _embedding(spec, weights[EMBEDDING], of_head, head)
    found["final_norm"] = Packed(_array(weights["model.norm.weight"]))
    found["head_bias"] = Packed(pack_bias(_array(weights.get("lm_head.bias"))))
    if blocks == ROUNDED and not any(one.row_form == ROUNDED for one in found.values()):
        raise NoIntegerProducts(
            "PACELINE_ACTIVATIONS=int8 needs weights of integers, and this target has none: PACELINE_WEIGHTS=q8_0 "
            "rounds them when they are loaded"
        )
    return found


def _layer(spec: ModelSpec, weights: Weights, index: int, blocks: int) -> dict[int, Packed]:
    def find(name: str) -> np.ndarray:
        return _array(weights.get(f"model.layers.{index}.{name}"))

    def need(name: str) -> Weight:
        return weights[f"model.layers.{index}.{name}.weight"]

    siblings = [f"self_attn.{name}_proj" for name in "qkv"]
    arrays = {
        shapes.NORM1: _array(need("input_layernorm")),
        shapes.NORM2: _array(need("post_attention_layernorm")),
        shapes.Q_NORM: find("self_attn.q_norm.weight"),
        shapes.K_NORM: find("self_attn.k_norm.weight"),
        shapes.QKV_BIAS: pack_bias(np.concatenate([find(f"{name}.bias") for name in siblings])),
        shapes.OUT_BIAS: pack_bias(find("self_attn.o_proj.bias")),
        shapes.DOWN_BIAS: pack_bias(find("mlp.down_proj.bias")),
    }
    d, inner = spec.hidden, spec.inner
    query, key = spec.num_heads * spec.head_dim, spec.num_key_heads * spec.head_dim
    linears = (
        *zip((shapes.Q, shapes.K, shapes.V), map(need, siblings), (query, key, key), (d, d, d), strict=True),
        (shapes.OUT, need("self_attn.o_proj"), d, query),
        (shapes.GATE_UP, _in_turn(need("mlp.gate_proj"), need("mlp.up_proj")), 2 * inner, d),
        (shapes.DOWN, need("mlp.down_proj"), d, inner),
    )
    return {slot: Packed(array) for slot, array in arrays.items()} | {
        slot: _linear(weight, columns, depth, blocks) for slot, weight, columns, depth in linears
    }


def _linear(weight: Weight, columns: int, depth: int, blocks: int) -> Packed:
    """`blocks`: the form of rows for weights of integers."""
    if shape_of(weight) != (columns, depth):
        raise ValueError(f"a weight has shape {shape_of(weight)}, expected {(columns, depth)}")
    packed = _packed(weight)
    return packed._replace(row_form=blocks) if packed.kind in INTEGER_FORMATS else packed


def _embedding(spec: ModelSpec, weight: Weight, of_head: Weight, head: Packed) -> Packed:
    """Return the packed head if it is the same."""
    if shape_of(weight) != (spec.vocab_size, spec.hidden):
        raise ValueError(f"the embedding has shape {shape_of(weight)}, expected {(spec.vocab_size, spec.hidden)}")
    return head if _is_same(weight, of_head) else packed_once(weight)


def _array(weight: Weight | None) -> np.ndarray:
    if weight is None:
        return np.zeros(0, np.float32)
    return np.ascontiguousarray(dense(weight).numpy())


def _kind(weight: Weight) -> str:
    kind, depth = _stored(weight)[0], shape_of(weight)[1]
    return kind if kind in STORED and depth % STORED[kind].depth == 0 else "F32"


def _packed(weight: Weight) -> Packed:
    kind, (columns, depth) = _kind(weight), shape_of(weight)
    return Packed(
        pack(_array(weight)) if kind == "F32" else pack_stored(kind, _stored(weight)[1], depth), kind, columns
    )


@lru_cache(maxsize=1)
def packed_once(embedding: Weight) -> Packed:
    """Share it between all models of a process."""
    return _packed(embedding)


def _is_same(one: Weight, other: Weight) -> bool:
    (kind, rows), (other_kind, other_rows) = _stored(one), _stored(other)
    if kind != other_kind or rows.shape != other_rows.shape:
        return False
    pieces = (slice(first, first + COMPARED_ROWS) for first in range(0, len(rows), COMPARED_ROWS))
    is_one_place = rows.ctypes.data == other_rows.ctypes.data  # of a file that is mapped into memory
    return is_one_place or all(np.array_equal(rows[piece], other_rows[piece]) for piece in pieces)


def _stored(weight: Weight) -> tuple[str, np.ndarray]:
    if isinstance(weight, Blocks):
        return weight.type, weight.rows
    rows = weight.detach().contiguous()
    return TYPES.get(rows.dtype, "F32"), rows.view(torch.uint8).numpy()


def _in_turn(one: Weight, other: Weight) -> Weight:
    """Interleave sixteen rows of each: `open_gate` takes a pair of blocks at a time."""
    if isinstance(one, Blocks) and isinstance(other, Blocks) and one.type == other.type:
        return Blocks(one.type, _pairs(one.rows, other.rows), one.depth)
    if isinstance(one, Blocks) or isinstance(other, Blocks) or one.dtype != other.dtype:
        one, other = dense(one), dense(other)
    both = [tensor.detach().reshape(-1, LANES, tensor.shape[1]) for tensor in (one, other)]
    return torch.stack(both, 1).reshape(-1, one.shape[1])


def _pairs(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.stack([rows.reshape(-1, LANES, rows.shape[1]) for rows in (one, other)], 1).reshape(-1, one.shape[1])
