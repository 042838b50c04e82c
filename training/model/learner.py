"""Distil a target into a student, step by step; a step depends on seed, step number and weights alone.

Loss: KL(target || drafter) over a set of candidates, plus GOLD times the cross-entropy of the target's token. The
target's logits are not stored: its last hidden states are, and these times rows of its head are the logits. All of the
head's columns in every step would cost most of the time, so the candidates are the target's tokens in the batch and
some random others. Positions without stored states have the cross-entropy alone.
"""

import math
import random
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from training.data.batches import NOTHING, Batch, batch
from training.data.rows import Row
from training.model.student import Student

GOLD = 0.3
WARM_UP_STEPS = 30
LEAST_RATE = 1e-5
FEATURE_RATE = 0.5  # of the others' learning rate: a column of W moves every number it makes
ALIKE = 200  # rows of about the same length from which a step draws: little is padded
MAX_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """The hyperparameters of a training."""

    seed: int
    batch: int  # rows a step
    rate: float  # peak learning rate
    negatives: int  # random candidates


class Loss(NamedTuple):
    """A step's mean loss over its positions, and their number."""

    total: float
    positions: int


class Learner:
    """A student, its optimiser and the number of steps taken. AdamW; rate: warm-up, then a cosine over all steps."""

    def __init__(self, student: Student, rows: list[Row], recipe: Recipe) -> None:
        self.student = student
        self.step = 0
        self._rows, self._recipe = sorted(rows, key=lambda row: len(row.tokens)), recipe
        self._to_head = torch.full((int(student.head_ids.max()) + 1,), NOTHING)
        self._to_head[student.head_ids] = torch.arange(len(student.head_ids))
        most = max(max(row.labels) for row in rows) + 1
        self._to_head = F.pad(self._to_head, (0, max(0, most - len(self._to_head))), value=NOTHING)
        features = [p for name, p in student.named_parameters() if _is_feature(name)]
        others = [p for name, p in student.named_parameters() if not _is_feature(name)]
        groups = [{"params": others, "factor": 1.0}, {"params": features, "factor": FEATURE_RATE}]
        self.optimiser = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.01
        )

    def learn(self, total_steps: int | None) -> Loss:
        """Take one step of `total_steps`, None while their number is unknown; return its loss."""
        self.step += 1
        recipe = self._recipe
        draw = random.Random(f"{recipe.seed}/{self.step}")  # no state of its own: a step can be taken again
        chosen = self._chosen(draw)
        one = batch(chosen, self._to_head, self.student.width, draw)
        loss = self._loss(one, torch.Generator().manual_seed(draw.getrandbits(63)))
        for group in self.optimiser.param_groups:
            group["lr"] = group["factor"] * rate_at(self.step, total_steps, recipe.rate)
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.student.parameters(), MAX_NORM)
        self.optimiser.step()
        return Loss(float(loss.detach()), len(one.is_known))

    def _chosen(self, draw: random.Random) -> list[Row]:
        """Draw rows of about one length; a length comes up as often as there are rows of it."""
        first = draw.randrange(len(self._rows)) - ALIKE // 2
        first = max(0, min(first, len(self._rows) - ALIKE))
        alike = self._rows[first : first + ALIKE]
        return draw.sample(alike, min(self._recipe.batch, len(alike)))

    def _loss(self, one: Batch, generator: torch.Generator) -> torch.Tensor:
        student = self.student
        asked = one.gold != NOTHING
        hidden = student(one.ids, one.states, one.present)[asked]  # (P, d)
        gold = one.gold[asked]  # (P,)
        some = torch.randint(len(student.head_ids), (self._recipe.negatives,), generator=generator)
        whole_head = torch.arange(len(student.head_ids))
        candidates = torch.unique(torch.cat([gold, some])) if one.is_known.all() else whole_head  # (C,)
        spoken = (hidden @ student.head[candidates].T).log_softmax(-1)  # (P, C)
        with torch.no_grad():
            wanted = (one.target_states @ student.target_head[candidates].T).log_softmax(-1)  # (P, C)
        apart = (wanted.exp() * (wanted - spoken)).sum(-1)  # (P,)
        wrong = F.nll_loss(spoken, torch.searchsorted(candidates, gold), reduction="none")  # (P,)
        return torch.where(one.is_known, apart + GOLD * wrong, wrong).sum() / max(1, len(gold))


def rate_at(step: int, total_steps: int | None, peak: float) -> float:
    """Return the learning rate of a step, counted from 1: warm-up, then a cosine if `total_steps` is known."""
    done = 0.0 if total_steps is None else min(1.0, step / total_steps)
    return peak * min(1.0, step / WARM_UP_STEPS) * (0.5 + 0.5 * math.cos(math.pi * done)) + LEAST_RATE


def _is_feature(name: str) -> bool:
    return name.startswith(("feature.", "absent"))
