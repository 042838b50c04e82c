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

from app.engine.plan import Plan
from app.errors import ModelRefused
from kernels.packed_linear import PackedLinear, can_pack
from kernels.paged_attention import paged_attention_reference

log = logging.getLogger(__name__)
ATTENTION = "paceline"


def load(folder: Path) -> PreTrainedModel:
    """Load the model in `folder` in float32, ready for `ModelRunner`. Raises ModelRefused."""
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
    """Replace every linear layer by its packed twin; the original weight goes unless something else holds it."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and module.weight.dtype == torch.float32:
            packed = PackedLinear(module.weight, module.bias)
        elif type(module) is Conv1D and module.weight.dtype == torch.float32:  # GPT-2's, its weight transposed
            packed = PackedLinear(module.weight.T, module.bias)
        else:
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], packed)


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
