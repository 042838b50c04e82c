"""Define the protocol of a target (`app.engine.cpu.runner`, `app.engine.gpu.runner`)."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Listed
from typing import Final, Protocol

import numpy as np

from app.request import Sampling, TokenLogprobs
from app.state import BatchEntry, CachedSequence


class TargetRows(Protocol):
    """A batch entry's computed rows: row 0 after its last token, row i after tree node i."""

    def token(
        self, node: int, position: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> int:
        """Choose the token after `node`, for `position` (design D1). `mask`: (V,) bool, the tokens allowed; None:
        all.
        """
        ...

    def logprobs(
        self, node: int, token: int, top: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> TokenLogprobs:
        """Return the log-probabilities of `token` and of the `top` likeliest after `node`."""
        ...

    def state(self, node: int) -> bytes | None:
        """Return the last normed hidden state after `node`, (d,) float16, little endian, if kept."""
        ...


class LaunchedStep(Protocol):
    @property
    def runs_beside(self) -> bool: ...

    @property
    def took_s(self) -> float:
        """Return the seconds of the target's work; 0 before the step is collected."""
        ...

    def collect(self) -> Listed[TargetRows | None]:
        """Wait for the step, once; return each entry's rows, None for a chunk of a prompt.

        Raises what the step failed with; then `Target.invalidate` its entries.
        """
        ...


class StepOnCollect:
    """A step that runs on the caller's thread when it is collected."""

    def __init__(
        self, run: Callable[[], Listed[TargetRows | None]], perf_counter: Callable[[], float] = time.perf_counter
    ) -> None:
        self._run, self._perf_counter = run, perf_counter
        self._took_s = 0.0
        self.runs_beside: Final = False

    @property
    def took_s(self) -> float:
        return self._took_s

    def collect(self) -> Listed[TargetRows | None]:
        began_s = self._perf_counter()
        rows = self._run()
        self._took_s = self._perf_counter() - began_s
        return rows


class Target(Protocol):
    """Run steps, for one thread. A launched step is collected before pages are reserved again.

    Once it is collected, each entry is accepted, dropped or invalidated. Meanwhile pages may be released, and entries
    do not change.
    """

    @property
    def capacity_tokens(self) -> int:
        """Return the length of the longest sequence, with its tree, that fits alone."""
        ...

    @property
    def free_tokens(self) -> int: ...

    def try_reserve(self, work: BatchEntry) -> bool:
        """Reserve the pages of an entry's rows and forks; False: too few are free, none are taken."""
        ...

    def release(self, sequence: CachedSequence) -> None: ...

    def adopt(self, sequence: CachedSequence) -> int:
        """Give the sequence the cached pages of others with the same beginning, its last token left out; return their
        tokens.
        """
        ...

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        """Set how many of the sequence's first tokens are cached. Its pages stay."""
        ...

    def launch(self, works: list[BatchEntry]) -> LaunchedStep: ...

    def accept(self, work: BatchEntry, path: list[int]) -> None: ...

    def drop(self, work: BatchEntry) -> None:
        """Release the pages of an entry's forks; the sequence's cache stays."""
        ...

    def invalidate(self, work: BatchEntry) -> None:
        """Release the pages of an entry whose forward failed, and clear them."""
        ...
