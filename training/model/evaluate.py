"""What a drafter is worth on held-out prompts: rounds of speculation against the target's own greedy text."""

from dataclasses import dataclass

import torch

from training.data.rows import Row
from training.model.student import Student

DRAFTED = 4  # tokens a round
FIRST_TOKENS = 48  # of a row are played
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
    """Of each domain the first `most` rows that a drafter can be judged by: greedy ones that go on for a while."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        own = found.setdefault(row.domain, [])
        if row.is_greedy and len(row.said) > DRAFTED and len(own) < most:
            own.append(row)
    return [row for own in found.values() for row in own]


@torch.inference_mode()
def evaluate(student: Student, rows: list[Row]) -> dict[str, dict[str, float]]:
    """By domain, and for all: `top1`, the share of rounds whose first draft token is right; `tokens_per_round`, at
    DRAFTED tokens drafted one after the other; `rows`. States, where stored, are read at round starts."""
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
    """(rounds, tokens, first tokens right) of one row. A round is one pass: a drafted token that is right is the
    text's own, so the text itself is what the drafter reads until it is wrong."""
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
