"""Define the protocol of a target (`app.engine.cpu.runner`, `app.engine.gpu.runner`)."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Listed
from typing import Final, Protocol

import numpy as np

from app.request import Sampling, TokenLogprobs
from app.state import BatchEntry, CachedSequence


class TargetRows(Protocol):
    """Row 0 follows the entry's last token, row i tree node i."""

    def token(
        self, node: int, position: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> int:
        """Choose the token for `position` (design D1). `mask`: (V,) bool, the tokens allowed; None: all."""
        ...

    def logprobs(
        self, node: int, token: int, top: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> TokenLogprobs: ...

    def state(self, node: int) -> bytes | None:
        """Return the last normed hidden state, (d,) float16, little endian; None if not kept."""
        ...


class LaunchedStep(Protocol):
    @property
    def runs_beside(self) -> bool:
        """Tell whether the step runs in parallel with the caller."""
        ...

    @property
    def took_s(self) -> float:
        """0 before the step is collected."""
        ...

    def collect(self) -> Listed[TargetRows | None]:
        """Wait, once; return each entry's rows, None for a chunk of a prompt.

        Raises the step's error; then `Target.invalidate` its entries.
        """
        ...


class StepOnCollect:
    """Run the step on the caller's thread, whose cores it needs, when collected."""

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
    """For one thread. Reserve pages, launch, collect, then accept, drop or invalidate each entry; one step at a time.

    Until collection, pages may be released, and entries must not change.
    """

    @property
    def capacity_tokens(self) -> int: ...

    @property
    def free_tokens(self) -> int: ...

    def try_reserve(self, work: BatchEntry) -> bool:
        """Reserve an entry's rows and forks: all or none."""
        ...

    def release(self, sequence: CachedSequence) -> None: ...

    def adopt(self, sequence: CachedSequence) -> int:
        """Give the sequence cached pages of its prefix without the last token; return their tokens."""
        ...

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        """Count exactly `tokens` tokens as cached. Pages stay."""
        ...

    def launch(self, works: list[BatchEntry]) -> LaunchedStep: ...

    def accept(self, work: BatchEntry, path: list[int]) -> None:
        """Keep the keys and values of the entry's tokens and of `path` only."""
        ...

    def drop(self, work: BatchEntry) -> None: ...

    def invalidate(self, work: BatchEntry) -> None:
        """Release a failed entry's pages, and clear its writes."""
        ...
