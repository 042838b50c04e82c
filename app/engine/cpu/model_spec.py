"""Describe a Llama-shaped model's configuration for the fused forward."""

from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from app.engine.weights.families import SLACK, NotFusable
from kernels.cpu.products.row_blocks import BLOCK
from kernels.cpu.simd import LANES

TURNED_ALIKE = 1e-6  # how far our sines may be from the modules'


class ModelSpec(BaseModel):
    """Sizes and constants of a model; JSON keeps the numbers to the last bit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_layers: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    hidden: int
    inner: int  # of the gated SiLU
    max_positions: int
    vocab_size: int  # tokens it can read; its head may know fewer
    epsilon: float  # of the norms
    scale: float  # of attention's scores
    windows: tuple[int | None, ...]  # keys a row of each layer sees; None: all
    frequencies: tuple[float, ...]  # (D / 2,) radians a position
    turn_scale: float  # of sines and cosines (yarn's)

    @property
    def positions(self) -> int:
        return self.max_positions + SLACK

    def turns(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines, (positions, D) float32 each."""
        angles = torch.arange(self.positions).float()[:, None] * torch.tensor(self.frequencies)[None]
        both = torch.cat((angles, angles), -1)
        return both.cos() * self.turn_scale, both.sin() * self.turn_scale


def model_spec_of(hooked: Any) -> ModelSpec:
    """`hooked` has made a pass. Raises NotFusable."""
    model: Any = hooked.model
    config, inner = model.config.get_text_config(), model.model.layers[0].mlp.gate_proj.out_features
    # Heads are whole blocks of a row: attention writes those of one key head at a time.
    if hooked.shape.head_dim % BLOCK or config.hidden_size % LANES or inner % LANES:
        raise NotFusable(f"the head size must be a multiple of {BLOCK}, and the hidden sizes of {LANES}")
    if len({kind.scale for kind in hooked.kinds}) > 1 or any(kind.softcap for kind in hooked.kinds):
        raise NotFusable("unsupported attention implementation")
    rotary = model.model.rotary_emb
    found = ModelSpec(
        num_layers=hooked.shape.num_layers,
        num_heads=config.num_attention_heads,
        num_key_heads=hooked.shape.num_key_heads,
        head_dim=hooked.shape.head_dim,
        hidden=config.hidden_size,
        inner=inner,
        max_positions=hooked.max_positions,
        vocab_size=hooked.vocab_size,
        epsilon=float(model.model.norm.variance_epsilon),
        scale=float(hooked.kinds[0].scale),
        windows=tuple(kind.window for kind in hooked.kinds),
        frequencies=tuple(rotary.inv_freq.float().tolist()),
        turn_scale=float(rotary.attention_scaling),
    )
    _check_turns(found, rotary)
    return found


def _check_turns(spec: ModelSpec, rotary: Any) -> None:
    if 2 * len(spec.frequencies) != spec.head_dim:
        raise NotFusable("partial rotary embeddings are not supported")
    theirs = rotary(torch.zeros(1, 1, 1), torch.arange(spec.positions)[None])
    for ours, their in zip(spec.turns(), theirs, strict=True):
        if not (ours - their[0]).abs().max() < TURNED_ALIKE:
            raise NotFusable("unsupported rotary embedding")
