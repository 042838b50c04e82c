"""Evaluate a drafter on held-out prompts: rounds of speculation against the target's own greedy text.

Only chains of DRAFTED tokens are played, no trees.
"""

import torch

from training.data.rows import Row
from training.model.student import Student

DRAFTED = 4  # tokens a round
FIRST_TOKENS = 48  # of a row's continuation are played
ALL = "all"


def judged(rows: list[Row], most: int) -> list[Row]:
    """Choose the first `most` rows of each domain that can be played: greedy ones longer than one round."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        own = found.setdefault(row.domain, [])
        if row.is_greedy and len(row.continuation) > DRAFTED and len(own) < most:
            own.append(row)
    return [row for own in found.values() for row in own]


@torch.inference_mode()
def evaluate(student: Student, rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return a drafter's scores by domain, and for ALL.

    `top1`: the share of rounds whose first draft token is right; `tokens_per_round`: the accepted length
    at DRAFTED tokens drafted one after the other; `rows`. Stored states are read where rounds start.
    """
    was_training = student.training
    student.eval()
    played: dict[str, list[tuple[int, int, int]]] = {}
    for row in rows:
        counts = play(student, row)
        for name in (row.domain, ALL):
            played.setdefault(name, []).append(counts)
    student.train(was_training)
    scores = {}
    for name, own in sorted(played.items()):
        rounds, tokens, firsts = map(sum, zip(*own, strict=True))
        if rounds:
            top1, length = round(firsts / rounds, 4), round(tokens / rounds, 4)
            scores[name] = {"top1": top1, "tokens_per_round": length, "rows": len(own)}
    return scores


def play(student: Student, row: Row) -> tuple[int, int, int]:
    """Play one row; return (rounds, tokens committed, rounds whose first draft token is right).

    A round is one pass over the text itself: as long as drafted tokens are right they are the text's own.
    """
    text = torch.tensor([row.tokens])
    length, at = len(row.tokens), len(row.prompt)
    states, present = torch.zeros(1, length, student.width), torch.zeros(1, length, dtype=torch.bool)
    if row.states is not None:
        states[0, 1:] = torch.from_numpy(row.states.astype("f4"))
    rounds = tokens = firsts = 0
    last = min(length - 1, at + FIRST_TOKENS)
    while at < last:
        present[0, at] = row.states is not None
        end = min(at + DRAFTED, length - 1)  # drafts stand at at + 1 ... end
        hidden = student(text[:, :end], states[:, :end], present[:, :end])[0, at:]
        drafts = student.head_ids[(hidden @ student.head.T).argmax(-1)]
        right = int((drafts == text[0, at + 1 : end + 1]).int().cumprod(0).sum())
        rounds, tokens, firsts = rounds + 1, tokens + right + 1, firsts + (right > 0)
        at += right + 1
    return rounds, tokens, firsts
