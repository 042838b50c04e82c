"""The packed rows of one step, as tensors on the device."""

from dataclasses import dataclass

import torch

from kernels.attention.ragged_attention import Batch
from kernels.sampling.choices import RowChoices


@dataclass(frozen=True, slots=True)
class Rows:
    """T rows, those of one sequence side by side. A row that only fills up belongs to no sequence and has slot -1."""

    ids: torch.Tensor  # (T,) int32
    positions: torch.Tensor  # (T,) int32
    slots: torch.Tensor  # (T,) int32, page * S + offset
    narrow: Batch | None  # sequences of at most 64 rows: trees
    wide: Batch | None  # the others: chunks of prompts
    wanted: torch.Tensor | None  # (N,) int32, rows whose tokens are wanted; None: all
    choices: RowChoices  # of the N wanted rows
