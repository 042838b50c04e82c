"""Evaluate a drafter on held-out prompts: rounds of speculation against the target's own greedy text.

Only chains of DRAFTED tokens are played, no trees.
"""

from dataclasses import dataclass

import torch

from training.data.rows import Row
from training.model.student import Student

DRAFTED = 4  # tokens a round
FIRST_TOKENS = 48  # of a row's continuation are played
ALL = "all"


@dataclass(slots=True)
class _Sum:
    rows: int = 0
    rounds: int = 0
    tokens: int = 0  # committed, the target's own included
    firsts: int = 0  # rounds whose first draft token was right

    def add(self, rounds: int, tokens: int, firsts: int) -> None:
        self.rows += 1
        self.rounds, self.tokens, self.firsts = self.rounds + rounds, self.tokens + tokens, self.firsts + firsts


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
    sums: dict[str, _Sum] = {}
    for row in rows:
        played = play(student, row)
        for name in (row.domain, ALL):
            sums.setdefault(name, _Sum()).add(*played)
    student.train(was_training)
    return {
        name: {
            "top1": round(s.firsts / s.rounds, 4),
            "tokens_per_round": round(s.tokens / s.rounds, 4),
            "rows": s.rows,
        }
        for name, s in sorted(sums.items())
        if s.rounds
    }


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
