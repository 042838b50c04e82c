"""Run any Hugging Face causal LM's own modules as a forward: the oracle, and the fallback for other families.

Linear layers run on the compiled product, and activations on whole vectors, so that rows keep their bits.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.activations import ACT2CLS
from transformers.pytorch_utils import Conv1D

from app.config import WeightsAs
from app.engine.cpu.attention_tiles import Kind, Layout
from app.engine.cpu.forward import Checkpoints, KVShape, Output
from app.engine.packing import PackedBatch
from app.engine.weights.blocks import dense
from app.engine.weights.rounding import round_linear
from app.errors import ModelRefused
from kernels.attention.paged_attention import paged_attention
from kernels.cpu.products.packed_linear import PackedLinear

ATTENTION = "paceline"
ACTIVATIONS = {entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()}
VECTORS = 32  # float32 that torch takes at once, at most
SERIAL = 2**14  # numbers that it surely leaves to one thread


class HookedForward:
    def __init__(self, model: PreTrainedModel) -> None:
        """Take over the modules. Raises ModelRefused."""
        if not getattr(model, "_can_set_attn_implementation", lambda: False)():
            name = type(model).__name__
            raise ModelRefused(f"{name} ignores transformers' attention interface, so it cannot be served")
        model.set_attn_implementation(ATTENTION)
        config: Any = model.config.get_text_config()
        self.model = model
        self._num_heads = config.num_attention_heads
        num_key_heads = getattr(config, "num_key_value_heads", None) or self._num_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // self._num_heads
        self.shape = KVShape(config.num_hidden_layers, num_key_heads, head_dim)
        self.max_positions: int = config.max_position_embeddings
        self.vocab_size: int = model.get_input_embeddings().get_parameter("weight").shape[0]
        self.kinds: list[Kind] = []  # how each layer attends, known after the first pass

    @torch.inference_mode()
    def logits(self, plan: PackedBatch, checkpoints: Checkpoints | None = None) -> Output:
        """Raises ValueError for a plan that adds to the embeddings."""
        if plan.added is not None:
            raise ValueError("a hooked model's embeddings take no addition")
        layout = Layout(plan, self._num_heads, self.shape.num_key_heads)
        rows = self.model(
            input_ids=torch.tensor([plan.ids]),
            position_ids=torch.tensor([plan.positions]),
            use_cache=False,
            logits_to_keep=torch.tensor(plan.wanted or [0]),
            layout=layout,
        ).logits[0]
        if not self.kinds:
            self._check(layout, rows.shape[0], max(1, len(plan.wanted)))
        best = rows.max(-1)
        found = torch.where(best.values.isfinite(), best.indices, -1).tolist()
        return Output(rows[: len(plan.wanted)], found[: len(plan.wanted)], None)

    def _check(self, layout: Layout, rows: int, wanted: int) -> None:
        name, num_layers = type(self.model).__name__, self.shape.num_layers
        if len(layout.kinds) != num_layers:
            raise ModelRefused(f"{name} uses the attention interface in {len(layout.kinds)} of {num_layers} layers")
        if rows != wanted:
            raise ModelRefused(f"{name} ignores logits_to_keep, so it cannot be served")
        self.kinds = [kind for _, kind in sorted(layout.kinds.items())]


class WholeVectors(nn.Module):
    """An activation whose rows keep their bits; (..., N) -> (..., N) float32.

    torch computes a share's last few numbers differently from whole vectors: rows are padded, in pieces for one thread.
    """

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = x.shape[-1]
        padded = F.pad(x.reshape(-1, columns), (0, -columns % VECTORS)).contiguous()
        pieces = padded.view(-1, VECTORS).split(SERIAL // VECTORS)
        return torch.cat([self.activation(piece) for piece in pieces]).view(padded.shape)[:, :columns].reshape(x.shape)


def keep_bits(model: nn.Module) -> None:
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if _is_linear(layer):
                setattr(parent, name, PackedLinear(_weight(layer), _bias(layer)))
            elif type(layer) in ACTIVATIONS:
                setattr(parent, name, WholeVectors(layer))


def round_weights(model: nn.Module, wanted: WeightsAs) -> None:
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.weight = nn.Parameter(dense(round_linear(layer.weight, wanted)), requires_grad=False)


def _is_linear(module: nn.Module) -> bool:
    return type(module) in (nn.Linear, Conv1D) and module.weight.dtype == torch.float32


def _weight(layer: nn.Module) -> torch.Tensor:
    weight = layer.get_parameter("weight")
    return weight.T if type(layer) is Conv1D else weight


def _bias(layer: nn.Module) -> torch.Tensor | None:
    return None if layer.bias is None else layer.get_parameter("bias")


def _attention(
    module: nn.Module,
    query: torch.Tensor,  # (1, H, T, D), rotary applied
    key: torch.Tensor,  # (1, HK, T, D)
    value: torch.Tensor,  # (1, HK, T, D)
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    layout: Layout | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    if layout is None:
        raise ModelRefused("the model does not pass extra arguments to its attention layers")
    if s_aux is not None:
        raise ModelRefused("models with attention sinks are not supported")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    layout.store(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layout.kinds[layer] = Kind(sliding_window, scale, softcap)
    out = paged_attention(
        query[0].transpose(0, 1),
        layout.kv.keys[layer],
        layout.kv.values[layer],
        layout.tiles(sliding_window),
        scale,
        softcap,
    )
    return out[None], None


AttentionInterface.register(ATTENTION, _attention)
