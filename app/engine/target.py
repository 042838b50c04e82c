"""Define the protocol of a target: the calls of a verifier to a model runner, on any device.

Batch entries go in, one `TargetRows` an entry comes out. Knows no device and no torch.
"""

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
        """Choose the token after `node`, for `position`, given every token before it (design D1).

        `mask`: (V,) bool, the tokens allowed there; None: all.
        """
        ...

    def logprobs(
        self, node: int, token: int, top: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> TokenLogprobs:
        """Return the log-probability of `token` after `node`, and those of the `top` likeliest.

        `mask`: (V,) bool, the tokens allowed there; None: all.
        """
        ...

    def state(self, node: int) -> bytes | None:
        """Return the last normed hidden state after `node`; None where not kept.

        Its bytes are (d,) float16, little endian.
        """
        ...


class LaunchedStep(Protocol):
    """A step that has been laid out, and runs or will run."""

    @property
    def runs_beside(self) -> bool:
        """Tell whether the step runs beside the caller, before it is collected."""
        ...

    @property
    def took_s(self) -> float:
        """Return the seconds that the target worked on it; 0 before it is collected."""
        ...

    def collect(self) -> Listed[TargetRows | None]:
        """Wait for the step; return rows for each entry, None for one that is a chunk of a prompt. Call it once.

        Raises what the step failed with; then `Target.invalidate` its entries.
        """
        ...


class StepOnCollect:
    """A step that runs on the caller's thread when it is collected. Implements `LaunchedStep`.

    For targets on the cores that the caller needs, too: nothing is gained by running beside it.
    """

    def __init__(
        self, run: Callable[[], Listed[TargetRows | None]], perf_counter: Callable[[], float] = time.perf_counter
    ) -> None:
        """Run the step by `run`, timed by `perf_counter`, in seconds."""
        self._run, self._perf_counter = run, perf_counter
        self._took_s = 0.0
        self.runs_beside: Final = False

    @property
    def took_s(self) -> float:
        """Return the seconds that the step took; 0 before it is collected."""
        return self._took_s

    def collect(self) -> Listed[TargetRows | None]:
        """Run the step and return its rows."""
        began_s = self._perf_counter()
        rows = self._run()
        self._took_s = self._perf_counter() - began_s
        return rows


class Target(Protocol):
    """A model runner as a verifier uses it (`app.engine.cpu.runner`, `app.engine.gpu.runner`).

    One thread calls it. Pages are reserved before a launch; once the step is collected each entry is
    accepted, dropped or invalidated. One step is launched at a time: it is collected before any page
    is reserved again. Meanwhile pages may be released, and entries change no more.
    """

    @property
    def capacity_tokens(self) -> int:
        """Return the length of the longest sequence, with its tree, that fits alone."""
        ...

    @property
    def free_tokens(self) -> int:
        """Return the tokens that the pages of no sequence have room for."""
        ...

    def try_reserve(self, work: BatchEntry) -> bool:
        """Reserve the pages of an entry's rows and forks.

        False: too few are free, none are taken.
        """
        ...

    def release(self, sequence: CachedSequence) -> None:
        """Release all pages of a sequence; its prefix must be computed again if it goes on."""
        ...

    def adopt(self, sequence: CachedSequence) -> int:
        """Give the sequence cached pages of others that begin like it; return the tokens they hold.

        At least its last token is left to be computed.
        """
        ...

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        """Count the sequence's first `tokens` tokens as cached, and no more. Its pages stay."""
        ...

    def launch(self, works: list[BatchEntry]) -> LaunchedStep:
        """Lay out one step, and start it where it can run beside the caller."""
        ...

    def accept(self, work: BatchEntry, path: list[int]) -> None:
        """Keep the keys and values of an entry's tokens and of the nodes on `path`, and no others."""
        ...

    def drop(self, work: BatchEntry) -> None:
        """Release the pages of an entry's forks; the sequence's cache stays as it was before."""
        ...

    def invalidate(self, work: BatchEntry) -> None:
        """Release the pages of an entry whose forward failed, and clear what it may have written."""
        ...
