"""Decide whether a model is Llama-shaped, as the fused forwards require."""

from typing import TYPE_CHECKING, Any

from torch import nn

from app.engine.weights.rope_scaling import is_one_table

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
SLACK = 256  # positions beyond the model's context: a tree at its very end
ROTARY = ("default", "linear", "llama3", "yarn")  # the same angles at a position whatever the sequence's length


class NotFusable(Exception):
    """The fused forward does not support the model."""


def is_llama_shaped(model: "PreTrainedModel") -> bool:
    try:
        check_llama_shape(model)
    except NotFusable:
        return False
    return True


def check_llama_shape(model: "PreTrainedModel") -> None:
    """Raise NotFusable without pre-norm attention, a gated SiLU, rotary positions and plain linear layers."""
    name = type(model).__name__
    if name not in FAMILIES:
        raise NotFusable(f"{name} is none of the supported {', '.join(FAMILIES)}")
    whole: Any = model
    mlp = whole.model.layers[0].mlp
    if whole.config.get_text_config().hidden_act not in ("silu", "swish"):
        raise NotFusable(f"the activation function {whole.config.get_text_config().hidden_act} is not supported")
    if any(type(layer) is not nn.Linear for layer in (mlp.gate_proj, mlp.down_proj, whole.lm_head)):
        raise NotFusable("its linear layers are not torch.nn.Linear")
    if mlp.gate_proj.bias is not None or mlp.up_proj.bias is not None:
        raise NotFusable("the MLP's projections have a bias")
    rotary = whole.model.rotary_emb
    if rotary.rope_type not in ROTARY and not is_one_table(rotary.config.rope_parameters):
        raise NotFusable(f"the rope type {rotary.rope_type} is not supported")
