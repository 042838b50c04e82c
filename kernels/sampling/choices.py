"""Pack the sampling parameters of a batch of logits as tensors for `target_token_batch`.

Logits are never copied: `words` holds a bit for every token whose logit is read unchanged; a token with a bias or a
penalty has no bit but is an edit,

    y = (divided + add) - subtract,   divided = logit / divide above 0, else logit * divide

in the order and arithmetic of `kernels.sampling.target_token.shaped`; a forbidden token has neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernels.sampling.parameters import PARAMETERS, limits_of
from kernels.sampling.target_token import Row, penalties


@dataclass(frozen=True, slots=True)
class Edits:
    """The sparse changes of all rows; row r's are `first[r]` to `first[r + 1]`, by rising token."""

    words: torch.Tensor  # (N, ceil(V / 32)) int32, bit token % 32 of word token / 32
    first: torch.Tensor  # (N + 1,) int32
    tokens: torch.Tensor  # (E,) int32
    divide: torch.Tensor  # (E,) float32, 1 without a repetition penalty
    add: torch.Tensor  # (E,) float32
    subtract: torch.Tensor  # (E,) float32
    longest: int  # of one row: the grid is laid out on the host


@dataclass(frozen=True, slots=True)
class RowChoices:
    # (N,) each, of the types in `PARAMETERS`
    temperature: torch.Tensor
    top_p: torch.Tensor
    log_min_p: torch.Tensor
    top_k: torch.Tensor
    seed: torch.Tensor
    choice: torch.Tensor
    position: torch.Tensor  # (N,) int64, where the token is to stand
    edits: Edits | None  # None: no row has any, nor a mask

    def at(self, places: torch.Tensor, edits: Edits) -> "RowChoices":
        """Return the rows at `places` (E,) int64, with edits of their own."""
        kept = {name: getattr(self, name)[places] for name in self.__slots__ if name != "edits"}
        return RowChoices(**kept, edits=edits)


def pack_rows(rows: Sequence[Row], vocab_size: int, device: torch.device | str = "cpu") -> RowChoices:
    """Raises IndexError if a row names a token outside the vocabulary."""
    limits = [limits_of(row.choice, vocab_size) for row in rows]

    def pack(values: list[float], kind: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(values, kind)).to(device)

    return RowChoices(
        **{name: pack([getattr(one, name) for one in limits], kind) for name, (kind, _) in PARAMETERS.items()},
        position=pack([row.position for row in rows], np.int64),
        edits=pack_edits(rows, vocab_size, device),
    )


def pack_edits(rows: Sequence[Row], vocab_size: int, device: torch.device | str) -> Edits | None:
    """None if no row has edits or a mask. Raises IndexError like `pack_rows`."""
    if not any(_is_edited(row) for row in rows):
        return None
    as_it_is = np.zeros((len(rows), -(-vocab_size // 32) * 32), bool)
    listed = [_edit_row(row, as_it_is[i, :vocab_size]) for i, row in enumerate(rows)]
    lengths = [len(tokens) for tokens, *_ in listed]
    tokens, divide, add, subtract = (torch.cat(parts) for parts in zip(*listed, strict=True))
    return Edits(
        words=torch.from_numpy(np.packbits(as_it_is, axis=1, bitorder="little").view(np.int32)).to(device),
        first=torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device=device),
        tokens=tokens.to(device, torch.int32),
        divide=divide.to(device),
        add=add.to(device),
        subtract=subtract.to(device),
        longest=max(lengths),
    )


def _is_edited(row: Row) -> bool:
    is_masked = row.allowed is not None or row.mask is not None
    return bool(row.bias or row.is_penalised or is_masked)


def _edit_row(row: Row, as_it_is: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    if row.allowed is None:
        as_it_is[:] = True
    else:
        as_it_is[list(row.allowed)] = True
    if row.mask is not None:
        as_it_is &= row.mask
    amounts: dict[int, float] = {}
    if row.is_penalised:
        amounts = dict(zip(row.counts, penalties(row)[1].tolist(), strict=True))
    tokens = sorted(token for token in row.bias.keys() | amounts.keys() if as_it_is[token])
    as_it_is[tokens] = False
    divide = torch.tensor(
        [row.repetition_penalty if token in amounts else 1.0 for token in tokens], dtype=torch.float32
    )
    add = torch.tensor([row.bias.get(token, 0.0) for token in tokens], dtype=torch.float32)
    subtract = torch.tensor([amounts.get(token, 0.0) for token in tokens], dtype=torch.float32)
    return torch.tensor(tokens, dtype=torch.int64), divide, add, subtract


def meta_edits(num_rows: int, vocab_size: int) -> Edits:
    words = torch.empty(num_rows, -(-vocab_size // 32), dtype=torch.int32, device="meta")
    integers, floats = (torch.empty(num_rows + 1, dtype=kind, device="meta") for kind in (torch.int32, torch.float32))
    return Edits(words, integers, integers, floats, floats, floats, longest=100)


def meta_choices(num_rows: int, edits: Edits | None) -> RowChoices:
    kinds = {name: kind for name, (kind, _) in PARAMETERS.items()} | {"position": np.int64}
    empty = {name: torch.from_numpy(np.empty(num_rows, kind)).to("meta") for name, kind in kinds.items()}
    return RowChoices(**empty, edits=edits)
