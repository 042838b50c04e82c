"""Load any Hugging Face causal LM, unforked, for packed ragged forwards over paged KV.

The attention goes through transformers' own interface; a model that ignores it is refused. On the CPU every
linear layer is replaced by its packed twin.
"""

import logging
from pathlib import Path

import torch
from torch import nn
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from app.engine.plan import Plan
from app.errors import ModelRefused
from kernels.packed_linear import PackedLinear, PackedSiblings, can_pack
from kernels.paged_attention import paged_attention_reference

log = logging.getLogger(__name__)
ATTENTION = "paceline"
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # layers that read the same input


def load(folder: Path) -> PreTrainedModel:
    """Load the model in `folder` in float32, ready for `ModelRunner`. Raises ModelRefused."""
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{folder} does not hold a loadable causal LM: {error}") from error
    return prepare(model)


def prepare(model: PreTrainedModel) -> PreTrainedModel:
    """Plug the packed attention and the packed linears into a loaded model, in place. Raises ModelRefused."""
    model.eval()
    model.requires_grad_(False)
    if not getattr(model, "_can_set_attn_implementation", lambda: False)():
        raise ModelRefused(f"{type(model).__name__} ignores transformers' attention interface, so it cannot be served")
    model.set_attn_implementation(ATTENTION)
    if can_pack():
        pack_linears(model)
    else:
        log.warning("this torch has no packed linear operator: plain ones are used, slower and not bitwise invariant")
    return model


def pack_linears(model: nn.Module) -> None:
    """Replace linear layers by packed twins, those that read one input by one; unless held elsewhere the weights go."""
    for parent in list(model.modules()):
        layers = {name: layer for name, layer in parent.named_children() if _is_linear(layer)}
        for names in SIBLINGS:
            family = [layers[name] for name in names if name in layers]
            if len(family) == len(names) and len({layer.bias is None for layer in family}) == 1:
                siblings = PackedSiblings([_weight(layer) for layer in family], [_bias(layer) for layer in family])
                for name, member in zip(names, siblings.members, strict=True):
                    setattr(parent, name, member)
                    del layers[name]
        for name, layer in layers.items():
            setattr(parent, name, PackedLinear(_weight(layer), _bias(layer)))


def _is_linear(module: nn.Module) -> bool:
    return type(module) in (nn.Linear, Conv1D) and module.weight.dtype == torch.float32


def _weight(layer: nn.Module) -> torch.Tensor:
    """(N, K); GPT-2's Conv1D holds it transposed."""
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
    plan: Plan | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Write the rows' keys and values to their slots, then attend to the sequences' pages. Returns (1, T, H, D)."""
    if plan is None:
        raise ModelRefused("the model does not hand extra arguments down to its attention layers")
    if s_aux is not None:
        raise ModelRefused("attention sinks are not supported")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    plan.store(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
    plan.calls += 1
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = paged_attention_reference(
        query[0].transpose(0, 1),
        plan.kv.keys[layer],
        plan.kv.values[layer],
        plan.groups(sliding_window),
        scale,
        softcap,
    )
    return out[None], None


AttentionInterface.register(ATTENTION, _attention)
