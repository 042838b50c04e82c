"""Count, at states between two layers, the tokens of the whole vocabulary that are likelier than given ones."""

import numpy as np

from kernels.cpu.likelier import COUNTERS, PIECE, Count, count_likelier
from kernels.cpu.products.round_rows import BLOCK, BLOCK_BYTES
from kernels.cpu.shapes import Model
from kernels.cpu.simd import LANES
from kernels.cpu.threads import team, words


class HeadCount:
    """A model's last norm and head, packed as its forward reads them, on a team of threads."""

    def __init__(self, model: Model, held: list[np.ndarray], threads: int) -> None:
        """Take the arrays behind the model's addresses too, so that they live as long as this.

        `threads`: 1 counts on the calling thread, beside a pass too; more are the team that the forward has.
        """
        self._model, self._held, self._threads = model, held, threads

    def __call__(self, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Count the tokens likelier than tokens (n,) int64 at states (n, d) float32; all, for one without a column."""
        m, n, threads = self._model, len(tokens), self._threads
        normed = np.array(states, np.float32)  # a copy: the kernel norms it in place
        rounded = np.empty((n, m.hidden // BLOCK if m.head_rounds else 0, BLOCK_BYTES), np.uint8)
        counter = words(COUNTERS)
        count = Count(
            threads=threads,
            words=counter.ctypes.data,
            states=normed.ctypes.data,
            rounded=rounded.ctypes.data,
            tokens=np.minimum(tokens, m.vocab - 1),
            own=np.empty(n, np.float32),
            counts=np.zeros((threads, n), np.int64),
            logits=np.empty((threads, n, PIECE * LANES), np.float32),
        )
        if threads == 1:
            count_likelier(m, count, 0)  # a pass of one thread may be at work in the team of one
        else:
            team(threads).run(lambda thread: count_likelier(m, count, thread))
        return np.where(tokens < m.vocab, count.counts.sum(0), m.vocab)
