"""The protocol of a target: what verifiers ask of a model runner, on any device. No torch."""

from collections.abc import Sequence as Listed
from typing import Protocol

import numpy as np

from app.request import Sampling, TokenLogprobs
from app.state import BatchEntry, CachedSequence


class TargetRows(Protocol):
    """A batch entry's verdict rows: row 0 after its last token, row i after tree node i."""

    def token(
        self, node: int, position: int, sampling: Sampling, history: list[int], mask: np.ndarray | None = None
    ) -> int:
        """Choose the token after `node`, for `position`, given every token before it (design D1).

        `mask`: (V,) bool, the tokens allowed there; None: all.
        """
        ...

    def logprobs(
        self, node: int, token: int, top: int, sampling: Sampling, history: list[int], mask: np.ndarray | None = None
    ) -> TokenLogprobs:
        """Return the log-probability of that token, and of the `top` likeliest."""
        ...

    def state(self, node: int) -> bytes | None:
        """Return the last normed hidden state after `node`, d float16 little endian; None where not kept."""
        ...


class Target(Protocol):
    """A model runner as a verifier uses it (`app.engine.cpu.runner`, `app.engine.gpu.runner`)."""

    @property
    def capacity_tokens(self) -> int: ...
    @property
    def free_tokens(self) -> int: ...
    def try_reserve(self, work: BatchEntry) -> bool: ...
    def release(self, sequence: CachedSequence) -> None: ...
    def adopt(self, sequence: CachedSequence) -> int: ...
    def cover(self, sequence: CachedSequence, tokens: int) -> None: ...
    def forward(self, works: list[BatchEntry]) -> Listed[TargetRows | None]: ...
    def accept(self, work: BatchEntry, path: list[int]) -> None: ...
    def drop(self, work: BatchEntry) -> None: ...
    def invalidate(self, work: BatchEntry) -> None: ...
