"""Turn rows into the tensors of a training step.

All chance comes from the generator that is passed in.
"""

import random
from collections import Counter
from dataclasses import dataclass

import torch

from training.data.rows import Row

GOES_ON = 0.62  # chance that a round commits one token more: lengths as a fair drafter gets them
MOST_DRAFTED = 4
PAD = 0
NOTHING = -1  # in place of a gold index: no loss at this position


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded to one length T. P positions have a gold index, so a loss."""

    ids: torch.Tensor  # (B, T) int64
    gold: torch.Tensor  # (B, T) int64: index into the head of the target's next token, or NOTHING
    states: torch.Tensor  # (B, T, d) float32: the target's state at the position before
    present: torch.Tensor  # (B, T) bool: the last committed token of a round; there the drafter reads its state
    target_states: torch.Tensor  # (P, d) float32: the target's state at the P positions, in order
    is_known: torch.Tensor  # (P,) bool: whether it was stored


def batch(rows: list[Row], to_head: torch.Tensor, width: int, draw: random.Random) -> Batch:
    """Pad rows to one batch and draw where rounds start in them.

    `to_head` (V,) int64: a token's index in the head, or NOTHING; `width`: the target's d. A round is a present
    position, then a geometric number of absent ones, MOST_DRAFTED at most; so one pass teaches all depths of drafting.
    """
    shape = (len(rows), max(len(row.tokens) for row in rows))
    ids, gold = torch.full(shape, PAD), torch.full(shape, NOTHING)
    present, known = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    states, own = torch.zeros(*shape, width), torch.zeros(*shape, width)
    for i, row in enumerate(rows):
        length, first = len(row.tokens), len(row.prompt)
        ids[i, :length] = torch.tensor(row.tokens)
        gold[i, first - 1 : length - 1] = to_head[torch.tensor(row.labels)]
        starts = round_starts(first, length, draw)
        if row.states is not None:
            stored = torch.from_numpy(row.states.astype("f4"))
            states[i, 1:length] = stored
            own[i, : length - 1] = stored
            known[i, : length - 1] = True
            present[i, starts] = True
    asked = gold != NOTHING
    return Batch(ids, gold, states, present, own[asked], known[asked])


def round_starts(first: int, length: int, draw: random.Random) -> list[int]:
    """Draw the positions of each round's last committed token; the first is `first`, where generation begins."""
    starts, at = [], first
    while at < length:
        starts.append(at)
        at += 1
        for _ in range(MOST_DRAFTED):
            if draw.random() >= GOES_ON:
                break
            at += 1
    return starts


def head_tokens(rows: list[Row], vocab_size: int, size: int) -> list[int]:
    """Return the `size` tokens most frequent in the rows' labels, ascending; unseen low ids fill up."""
    counts = Counter(token for row in rows for token in row.labels)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))[:size]
    unseen = (token for token in range(vocab_size) if token not in counts)
    return sorted([*ranked, *(token for token, _ in zip(unseen, range(size - len(ranked)), strict=False))])


def weighted(rows: list[Row], domains: tuple[str, ...], others: float) -> list[Row]:
    """Keep all rows of these domains and the share `others` of the rest, chosen by digest; without domains all."""
    return [row for row in rows if not domains or row.domain in domains or _fraction(row) < others]


def _fraction(row: Row) -> float:
    """Map the row's digest to [0, 1), evenly."""
    return int(row.digest[-8:], 16) / 2**32
