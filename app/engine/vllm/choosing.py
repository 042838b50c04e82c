"""Choose tokens where the logits are: what a worker of vLLM needs for it, and what comes back, as plain values.

A worker may be another process, on another device. So a step carries, for each request, how its tokens are chosen
(`RowRule`), and brings back the walk along the drafts (`app.state.Verdict`).
"""

from collections.abc import Sequence as Listed
from dataclasses import dataclass

import numpy as np
import torch

from app.engine.cpu.runner import CPURows
from app.engine.history import TokenHistory
from app.engine.sampling_parameters import is_shaped, row_logprobs
from app.errors import GenerationFailed
from app.request import Sampling, TokenLogprobs
from app.stages.verify import verify
from app.state import CHAIN, BatchEntry, CachedSequence, Tree, Verdict


@dataclass(frozen=True, slots=True)
class RowRule:
    """How the tokens of one request's rows are chosen in a step."""

    sampling: Sampling
    eos_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    masks: tuple[np.ndarray | None, ...] | None = None  # by place, (V,) bool packed to bits; None: no grammar
    scores: int | None = None  # log-probabilities of a prompt's own tokens, beside so many likeliest ones

    @classmethod
    def of(cls, work: BatchEntry, drafts: Listed[int]) -> "RowRule":
        sequence = work.sequence
        masks = None if work.mask is None else tuple(_masks(work, drafts))
        return cls(sequence.sampling, work.eos_ids, sequence.logprobs, masks, work.scores)

    @property
    def is_plain(self) -> bool:
        """Tell whether each token is the argmax of its row, of which nothing else is wanted."""
        is_argmax = self.sampling.temperature == 0.0 and not self.masks and not is_shaped(self.sampling)
        return is_argmax and self.logprobs is None


def _masks(work: BatchEntry, drafts: Listed[int]) -> "list[np.ndarray | None]":
    """Return the masks of the places that a walk along the drafts can reach, up to one that nothing can follow."""
    assert work.mask is not None
    found: list[np.ndarray | None] = []
    for place in range(len(drafts) + 1):
        try:
            mask = work.mask(TokenHistory(work.sequence.tokens, drafts[:place]))
        except GenerationFailed:
            break
        found.append(None if mask is None else np.packbits(mask, bitorder="little"))
        if place < len(drafts) and mask is not None and not mask[drafts[place]]:
            break
    return found


def choose(rule: RowRule, tokens: list[int], drafts: list[int], logits: torch.Tensor, states: torch.Tensor) -> Verdict:
    """Walk along the drafts behind `tokens`.

    `logits`: (1 + drafts, V) of the last token and of each draft; `states`: (1 + drafts, d), what the head read.
    Raises ArithmeticError for logits that are not finite.
    """
    if not torch.isfinite(logits).all():
        raise ArithmeticError("the model's logits are not finite")
    rows = logits if rule.is_plain else logits.float().cpu()
    sequence = CachedSequence("", tokens, rule.sampling, logprobs=rule.logprobs)
    tree = Tree(drafts, CHAIN[: len(drafts)], [1.0] * len(drafts), [("draft",)] * len(drafts))
    mask = None if rule.masks is None else _Unpacked(rule.masks, len(tokens), logits.shape[-1])
    work = BatchEntry(sequence, len(tokens) - 1, tokens[-1:], tree, final=True, eos_ids=rule.eos_ids, mask=mask)
    (verdict,) = verify([work], [CPURows(rows, logits.argmax(-1).tolist(), states.float().cpu().numpy())])
    assert verdict is not None
    return verdict


def score(tokens: Listed[int], logits: torch.Tensor, top: int) -> list[TokenLogprobs]:
    """Return the log-probability of each of `tokens`; `logits`: (tokens, V), of the rows before them."""
    return [row_logprobs(row, token, top) for row, token in zip(logits.float().cpu(), tokens, strict=True)]


class _Unpacked:
    """The masks of a rule, by a history's length (`app.state.Mask`)."""

    def __init__(self, masks: tuple[np.ndarray | None, ...], length: int, vocab_size: int) -> None:
        self._masks, self._length, self._vocab_size = masks, length, vocab_size

    def __call__(self, history: Listed[int]) -> np.ndarray | None:
        place = len(history) - self._length
        if place >= len(self._masks):
            raise GenerationFailed("nothing can follow")  # the sender finds the same, with the reason
        packed = self._masks[place]
        return None if packed is None else np.unpackbits(packed, count=self._vocab_size, bitorder="little").astype(bool)


class WalkedRows:
    """The rows of a request whose tokens a worker has chosen. Implements `app.engine.target.TargetRows`."""

    __slots__ = ("_places", "_verdict")

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._places = {node: place for place, node in enumerate([0, *verdict.path])}

    @property
    def tokens(self) -> list[int]:
        """The chosen tokens along the drafts, one more than were right."""
        return self._verdict.tokens

    def token(
        self, node: int, position: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> int:
        return self._verdict.tokens[self._places[node]]

    def logprobs(
        self, node: int, token: int, top: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> TokenLogprobs:
        return self._verdict.logprobs[self._places[node]]

    def state(self, node: int) -> bytes | None:
        return self._verdict.state
