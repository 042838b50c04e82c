"""What "Llama-shaped" means: the decoders whose forward Paceline knows by heart, on the CPU and on a GPU."""

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
SLACK = 256  # positions beyond the model's context: a tree at its very end
ROTARY = ("default", "linear", "llama3", "yarn")  # the same angles at a position whatever the sequence's length


class NotFusable(Exception):
    """The model is not of the fused shape, or the fused forward does not agree with its modules."""


def is_llama_shaped(model: "PreTrainedModel") -> bool:
    """Whether `check_llama_shape` lets it pass."""
    try:
        check_llama_shape(model)
    except NotFusable:
        return False
    return True


def check_llama_shape(model: "PreTrainedModel") -> None:
    """Pre-norm layers of attention and a gated SiLU, positions by rotation, plain linears. Raises NotFusable."""
    name = type(model).__name__
    if name not in FAMILIES:
        raise NotFusable(f"{name} is not among {', '.join(FAMILIES)}")
    whole: Any = model
    mlp = whole.model.layers[0].mlp
    if whole.config.get_text_config().hidden_act not in ("silu", "swish"):
        raise NotFusable(f"its gate is {whole.config.get_text_config().hidden_act}")
    if any(type(layer) is not nn.Linear for layer in (mlp.gate_proj, mlp.down_proj, whole.lm_head)):
        raise NotFusable("its linear layers are not plain ones")
    if mlp.gate_proj.bias is not None or mlp.up_proj.bias is not None:
        raise NotFusable("its gate has a bias")
    if whole.model.rotary_emb.rope_type not in ROTARY:
        raise NotFusable(f"its positions are {whole.model.rotary_emb.rope_type}")
