"""Choose the target's token at one position.

    token = argmax over x of z(x) + G(seed, choice, position, x)

z are the logits after bias and penalties -> allowed-token mask -> temperature -> top-k -> top-p -> min-p; temperature 0
is the plain argmax. Ties go to the lowest id. A filter keeps every token as likely as the last kept one. One row at a
time: rounding is independent of other rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from kernels.sampling.gumbel_noise import gumbel_noise_reference

MIN_TEMPERATURE = 1e-5  # below it logits / temperature would leave float32
HEAD = 256  # top-p looks at this many likeliest tokens before it sorts them all


class Choice(NamedTuple):
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    choice: Choice
    position: int  # of the token to choose
    counts: Mapping[int, int] = field(default_factory=dict)  # of prompt, committed tokens and this node's ancestors
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias: Mapping[int, float] = field(default_factory=dict)
    allowed: tuple[int, ...] | None = None
    mask: np.ndarray | None = None  # (V,) bool: tokens allowed here, if not all

    @property
    def is_penalised(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)


def target_token_reference(logits: torch.Tensor, choice: Choice, position: int) -> int:
    """Logits (V,) float32 are after bias, penalties and mask: the specification."""
    if choice.temperature == 0.0:
        return int(logits.argmax())
    kept, z = filtered(logits, choice)
    return int(kept[(z + gumbel_noise_reference(kept, choice.seed, choice.choice, position)).argmax()])


def filtered(logits: torch.Tensor, choice: Choice) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the kept tokens of logits (V,): (ids ascending (n,) int64, their logits over the temperature (n,))."""
    z = logits / max(choice.temperature, MIN_TEMPERATURE)
    floor = torch.tensor(-torch.inf)
    if 0 < choice.top_k < len(z):
        floor = z.topk(choice.top_k).values[-1]
    if choice.top_p < 1.0:
        floor = torch.maximum(floor, _nucleus_floor(torch.where(z >= floor, z, -torch.inf), choice.top_p))
    if choice.min_p > 0.0:
        floor = torch.maximum(floor, z.max() + torch.log(torch.tensor(choice.min_p)))
    kept = torch.nonzero((z >= floor) & (z > -torch.inf)).squeeze(-1)
    return kept, z[kept]


def _nucleus_floor(z: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return the least logit of the smallest set of likeliest tokens whose mass reaches top_p."""
    normaliser = torch.logsumexp(z.double(), 0)
    for size in (min(HEAD, len(z)), len(z)):
        top = z.topk(size).values
        mass = (top.double() - normaliser).exp().cumsum(0)
        if mass[-1] >= top_p:
            return top[torch.searchsorted(mass, top_p)]
    return z.min()  # rounding left the whole mass below top_p: keep all


def shaped(logits: torch.Tensor, row: Row) -> torch.Tensor:
    """Apply bias, penalties, allowed tokens and the mask: (V,) to a new (V,) float32.

    A repetition penalty p divides the logits of seen tokens that are above 0 by p, and multiplies the others by it
    (CTRL, arXiv 1909.05858, section 4.1, as transformers has it), before all else.
    """
    z = logits.clone()
    if row.repetition_penalty != 1.0 and row.counts:
        seen = torch.tensor(list(row.counts), dtype=torch.int64)
        z[seen] = torch.where(z[seen] > 0, z[seen] / row.repetition_penalty, z[seen] * row.repetition_penalty)
    if row.bias:
        z[torch.tensor(list(row.bias))] += torch.tensor(list(row.bias.values()))
    if row.frequency_penalty or row.presence_penalty:
        seen, amounts = penalties(row)
        z[seen] -= amounts
    if row.allowed is not None:
        ids = torch.tensor(row.allowed)
        z = torch.full_like(z, -torch.inf).index_copy_(0, ids, z[ids])
    return z if row.mask is None else torch.where(torch.from_numpy(row.mask), z, -torch.inf)


def penalties(row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens seen, (n,) int64, and the amounts to subtract, (n,) float32."""
    counts = torch.tensor(list(row.counts.values()), dtype=torch.int64)
    seen = torch.tensor(list(row.counts), dtype=torch.int64)
    return seen, counts * row.frequency_penalty + row.presence_penalty
