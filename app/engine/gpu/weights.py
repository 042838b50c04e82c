"""Hold a Llama-shaped model's weights for the device's forward, with siblings joined."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from app.engine.weights.families import SLACK, NotFusable, check_llama_shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Linear:
    weight: torch.Tensor  # (N, K)
    bias: torch.Tensor | None  # (N,)


@dataclass(frozen=True, slots=True)
class Layer:
    norm1: torch.Tensor  # (d,)
    qkv: Linear  # ((H + 2 HK) D, d)
    q_norm: torch.Tensor | None  # (D,)
    k_norm: torch.Tensor | None  # (D,)
    out: Linear  # (d, H D)
    norm2: torch.Tensor  # (d,)
    gate_up: Linear  # (2 F, d), all of the gate first
    down: Linear  # (d, F)
    window: int  # keys a row sees, 0: all


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: torch.Tensor  # (V, d)
    layers: tuple[Layer, ...]
    norm: torch.Tensor  # (d,)
    head: Linear  # (V, d)
    cos: torch.Tensor  # (positions, D) float32
    sin: torch.Tensor  # (positions, D) float32
    epsilon: float
    scale: float  # of attention's scores
    num_heads: int
    num_key_heads: int
    head_dim: int
    max_positions: int

    @property
    def token_bytes(self) -> int:
        """Return the bytes of one token's keys and values."""
        return 2 * len(self.layers) * self.num_key_heads * self.head_dim * self.embedding.element_size()

    @property
    def num_bytes(self) -> int:
        """Return the least bytes that a step reads."""
        tensors = [self.norm, self.head.weight]
        for layer in self.layers:
            tensors += [layer.norm1, layer.norm2, *(one.weight for one in (layer.qkv, layer.out))]
            tensors += [layer.gate_up.weight, layer.down.weight]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@torch.inference_mode()
def take(model: "PreTrainedModel") -> Weights:
    """Take the weights of a model on its device. Raises NotFusable.

    Joined siblings replace the modules' own tensors, so nothing is held twice, and the modules still work.
    """
    check_llama_shape(model)
    whole: Any = model
    config = model.config.get_text_config()
    layers = tuple(_layer(layer, config) for layer in whole.model.layers)
    attention = whole.model.layers[0].self_attn
    if len({layer.self_attn.scaling for layer in whole.model.layers}) > 1:
        raise NotFusable("unsupported attention implementation")
    positions = torch.arange(config.max_position_embeddings + SLACK, device=model.device)[None]
    cos, sin = whole.model.rotary_emb(torch.zeros(1, device=model.device), positions)
    if cos.shape[-1] != attention.head_dim:
        raise NotFusable("partial rotary embeddings are not supported")
    return Weights(
        embedding=whole.model.embed_tokens.weight,
        layers=layers,
        norm=whole.model.norm.weight,
        head=_linear(whole.lm_head),
        cos=cos[0].float().contiguous(),
        sin=sin[0].float().contiguous(),
        epsilon=float(whole.model.norm.variance_epsilon),
        scale=float(attention.scaling),
        num_heads=config.num_attention_heads,
        num_key_heads=attention.k_proj.out_features // attention.head_dim,
        head_dim=attention.head_dim,
        max_positions=config.max_position_embeddings,
    )


def _layer(layer: Any, config: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return Layer(
        norm1=layer.input_layernorm.weight,
        qkv=_join(attention.q_proj, attention.k_proj, attention.v_proj),
        q_norm=None if q_norm is None else q_norm.weight,
        k_norm=None if k_norm is None else k_norm.weight,
        out=_linear(attention.o_proj),
        norm2=layer.post_attention_layernorm.weight,
        gate_up=_join(mlp.gate_proj, mlp.up_proj),
        down=_linear(mlp.down_proj),
        window=_window(attention, config),
    )


def _window(attention: Any, config: Any) -> int:
    holder = config if type(attention).__name__ == "MistralAttention" else attention
    return getattr(holder, "sliding_window", None) or 0


def _join(*members: nn.Linear) -> Linear:
    weight = torch.cat([member.weight.data for member in members])
    biases = [member.bias.data for member in members if member.bias is not None]
    if biases and len(biases) < len(members):
        raise NotFusable("only some of the projections have a bias")
    for member, part in zip(members, weight.split([member.out_features for member in members]), strict=True):
        member.weight = nn.Parameter(part, requires_grad=False)
    return Linear(weight, torch.cat(biases) if biases else None)


def _linear(member: nn.Linear) -> Linear:
    return Linear(member.weight, member.bias)
