"""From rows to the tensors of a training step. All chance comes from the generator that is passed in."""

import random
from collections import Counter
from dataclasses import dataclass

import torch

from training.data.rows import Row

GOES_ON = 0.62  # chance that a round commits one more: lengths as a fair drafter gets them
MOST_DRAFTED = 4
PAD = 0
NOTHING = -1  # in place of a gold index: nothing is asked here


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded to one length. P positions are asked about."""

    ids: torch.Tensor  # (B, T)
    gold: torch.Tensor  # (B, T) index into the head of what the target says next, or NOTHING
    states: torch.Tensor  # (B, T, d) what the drafter may read: the target's state at the position before
    present: torch.Tensor  # (B, T) bool, the last committed token of a round: there it does
    target_states: torch.Tensor  # (P, d) the target's state at the positions asked about, in order
    is_known: torch.Tensor  # (P,) bool: was it stored?


def batch(rows: list[Row], to_head: torch.Tensor, width: int, draw: random.Random) -> Batch:
    """`to_head` (V,): a token's index in the head, or NOTHING. Round starts are drawn: a present position, then a
    geometric number of absent ones, MOST_DRAFTED at most; so one pass teaches all depths of drafting at once."""
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
    """Positions of the last committed token of each round, the first at `first`, the first generated token's."""
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
    """The `size` tokens that the target says most often, ascending; unseen low ids fill up."""
    counts = Counter(token for row in rows for token in row.labels)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))[:size]
    unseen = (token for token in range(vocab_size) if token not in counts)
    return sorted([*ranked, *(token for token, _ in zip(unseen, range(size - len(ranked)), strict=False))])


def weighted(rows: list[Row], domains: tuple[str, ...], others: float) -> list[Row]:
    """All rows of these domains, and a share of the others': whose lot the prompt's digest is. No domains: all."""
    return [row for row in rows if not domains or row.domain in domains or _lot(row) < others]


def _lot(row: Row) -> float:
    return int(row.digest[-8:], 16) / 2**32
