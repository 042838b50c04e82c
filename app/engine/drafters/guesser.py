"""Guess each sequence's two best next tokens with the target's own noise (design D1)."""

from dataclasses import replace

import numpy as np
import torch

from app.config import WeightsAs
from app.engine.cpu.equivalence import probe
from app.engine.cpu.forward import Forward
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.runner import ModelRunner
from app.engine.drafters.features import Features
from app.engine.packing import plan
from app.engine.sampling_parameters import choice_of
from app.errors import ModelRefused
from app.request import Sampling
from app.state import BatchEntry, CachedSequence, Guess, Tree
from kernels.sampling.contenders import contenders
from kernels.sampling.target_token import MIN_TEMPERATURE

PROBED = 24  # tokens
ALIKE = 1e-3  # relative difference allowed between two computations of a confidence


class ModelGuesser:
    """For one thread."""

    def __init__(
        self,
        forward: Forward,
        head_ids: torch.Tensor | None,
        *,
        kv_bytes: int,
        page_tokens: int,
        features: Features | None = None,
        weights: WeightsAs = "stored",
    ) -> None:
        self._runner = ModelRunner(forward, kv_bytes=kv_bytes, page_tokens=page_tokens)
        self._head_ids = head_ids  # (Vh,) int64, the token each row of the head stands for; None: all, in order
        # The same for the compiled forward; empty: all, in order.
        self._columns = np.zeros(0, np.int64) if head_ids is None else head_ids.numpy()
        self._features = features
        self.reads_state = features is not None
        self.model = forward
        self.weights: WeightsAs = weights  # their form
        self.max_context = forward.max_positions

    def try_reserve(self, work: BatchEntry, ahead: int) -> bool:
        return self._runner.try_reserve(work, ahead)

    def release(self, sequence: CachedSequence) -> None:
        self._runner.release(sequence)

    def fork(self, sequence: CachedSequence, tokens: list[int]) -> CachedSequence | None:
        return self._runner.fork(sequence, tokens)

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        self._runner.cover(sequence, tokens)

    def invalidate(self, work: BatchEntry) -> None:
        self._runner.invalidate(work)

    def guess(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Guess]]:
        """Return each final entry's next guess, or a chain of up to `depth`.

        Ends when every product of confidences is below `floor`. Raises ArithmeticError for logits that are not finite.
        """
        can_chain = isinstance(self.model, FusedForward)
        chains = [work for work in works if can_chain and work.final]
        single = [work for work in works if not (can_chain and work.final)]
        found = {id(w): g for w, g in zip(chains, self._chains(chains, depth, floor), strict=True)}
        found |= {id(w): g for w, g in zip(single, self._single(single), strict=True)}
        return [found[id(work)] for work in works]

    def guess_one(self, works: list[BatchEntry], choices: int) -> list[list[Guess]]:
        """Return each final entry's next guess, of so many choices at temperature 0."""
        return self._single(works, choices)

    def check(self) -> None:
        """Raise ModelRefused unless guesses in one call equal guesses one by one."""
        for sampling in (Sampling(), Sampling(temperature=1.0, seed=1)):
            self._check(replace(probe(PROBED, self.model.vocab_size), sampling=sampling))

    def _check(self, sequence: CachedSequence) -> None:
        whole = BatchEntry(sequence, 0, sequence.tokens[:], Tree(), final=True)
        if not isinstance(self.model, FusedForward) or not self.try_reserve(whole, 2):
            return
        (found,) = self._chains([whole], 2, 0.0)
        alone = self._single([whole])[0]
        sequence.tokens.append(found[0].token)
        alone += self._single([BatchEntry(sequence, PROBED, sequence.tokens[PROBED:], Tree(), final=True)])[0]
        self.release(sequence)
        if not all(_are_alike(a, b) for a, b in zip(found, alone, strict=True)):
            raise ModelRefused(f"the drafter's compiled guesses {found} differ from its logits' {alone}")

    def _single(self, works: list[BatchEntry], choices: int = 2) -> list[list[Guess]]:
        found: list[list[Guess]] = [[] for _ in works]
        greedy: dict[int, torch.Tensor] = {}
        added = self._features.rows(works) if self._features else None
        for i, (work, rows) in enumerate(zip(works, self._runner.forward(works, added) if works else [], strict=True)):
            if rows is not None and is_greedy(work):
                greedy[i] = rows.rows[0]
            elif rows is not None:
                position = work.start + len(work.tokens)
                found[i] = [sampled(rows.rows[0], self._head_ids, position, work.sequence.sampling)]
        best = likeliest(torch.stack([*greedy.values()]), self._head_ids, choices) if greedy else []
        for i, guess in zip(greedy, best, strict=True):
            found[i] = [guess]
        return found

    def _chains(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Guess]]:
        if not works or not isinstance(self.model, FusedForward):
            return []
        packed = plan(works, self._runner.kv)
        packed.added = self._features.rows(works) if self._features else None
        absent = self._features.absent_rows(len(works)) if self._features else None
        choices = [choice_of(work.sequence.sampling) for work in works]
        chain = self.model.chain(packed, depth, floor, self._columns, absent, choices)
        count = int(chain.steps[0])
        guesses, chances = chain.guesses[:count].tolist(), chain.chances[:count].tolist()
        if any(tokens[0] < 0 for step in guesses for tokens in step):
            raise ArithmeticError("the model's logits are not finite")
        return [
            [Guess(s[i][0], p[i][0], s[i][1], p[i][1]) for s, p in zip(guesses, chances, strict=True)]
            for i in range(len(works))
        ]


def likeliest(logits: torch.Tensor, head_ids: torch.Tensor | None, choices: int = 2) -> list[Guess]:
    """Return the largest of each row of logits (N, Vh); `head_ids`: (Vh,) int64, the columns' tokens."""
    values, best = logits.topk(min(choices, logits.shape[-1]))
    chances = (values - logits.logsumexp(-1, keepdim=True)).exp().tolist()
    tokens = (best if head_ids is None else head_ids[best]).tolist()
    return [_guess(*both) for both in zip(tokens, chances, strict=True)]


def sampled(logits: torch.Tensor, head_ids: torch.Tensor | None, position: int, sampling: Sampling) -> Guess:
    """Return the two best of log q + G of logits (Vh,) float32, G the target's noise (design D1).

    Their confidences are parts of the mass of logits + T G: at any temperature T a lead counts in the model's own
    units, and without temperature it is the confidence of the likeliest token.
    """
    found = contenders(logits, choice_of(sampling), position, head_ids, best=2)
    temperature = max(sampling.temperature, MIN_TEMPERATURE)
    best = np.argsort(-found.scores, kind="stable")[:2]
    ids = found.ids[best] if head_ids is None else head_ids[found.ids[best]].numpy()
    return _guess(ids.tolist(), np.exp(temperature * found.scores[best] - found.log_mass).tolist())


def is_greedy(work: BatchEntry) -> bool:
    return work.sequence.sampling.temperature == 0.0


def _are_alike(ours: Guess, theirs: Guess) -> bool:
    is_tie = theirs.confidence - theirs.second_confidence < ALIKE * theirs.confidence
    is_same = ours.token == theirs.token or (is_tie and ours.token == theirs.second)
    return is_same and abs(ours.confidence - theirs.confidence) < ALIKE * theirs.confidence


def _guess(tokens: list[int], chances: list[float]) -> Guess:
    (token, chance), *others = zip(tokens, chances, strict=True)
    second, *further = others or [(token, 0.0)]
    return Guess(token, chance, *second, tuple(further))
