"""Ask a predictor in step with a pass, or beside it on a thread of its own.

A predictor and its checkpoints go in; chances come out where a pass acts on them (`RowPruner`).
Beside a pass the answer is acted on some layers later, as on FASER's stream of its own (papers 2.2):
after as many as the predictor's price, so that it is there. That layer is fixed, not the first at
which the answer is found to be there: which rows leave, and so rounds and statistics, are then the
same in every run, and the pass stops once more instead of at each layer. Knows neither trees nor rows.
"""

import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np

from app.engine.early_exit.rows import Checkpoint


class Predictor(Protocol):
    """A source of the chances that draft tokens are right, from the target's states half way."""

    layers: tuple[int, ...]  # the checkpoints: after so many layers, rising

    def chances(self, layer: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray) -> np.ndarray:
        """Return the chances that the tokens are right if all before them are, (n,) in 0 ... 1.

        states: (n, d) float32, hidden states after `layer` layers where the target chooses;
        tokens: (n,) int64; priors: (n,) float64, the same chances by the drafters' confidence.
        """
        ...


class RowCost(NamedTuple):
    """The multiply-adds of a target's row, without attention's."""

    num_layers: int
    layer: int  # of one layer
    head: int

    def rest(self, layers: int) -> float:
        """Return the share that comes after so many layers, the head's included."""
        return ((self.num_layers - layers) * self.layer + self.head) / (self.num_layers * self.layer + self.head)

    def late(self, products: int, threads: int) -> int:
        """Return the layers of a pass of so many threads in which one thread makes `products` a row: 1 or more."""
        return max(1, math.ceil(products * threads / self.layer))

    def checkpoints(self, layers: Iterable[int], late: int = 0) -> tuple[Checkpoint, ...]:
        """Return the checkpoints after these layers, rising, whose answers come `late` layers after.

        Those are left out whose answer would come with the pass's end, or that would be asked while
        another answer is awaited.
        """
        found: list[Checkpoint] = []
        for look in layers:
            act = look + late
            if act < self.num_layers and (not found or look >= found[-1].act):
                found.append(Checkpoint(look, act, self.rest(act)))
        return tuple(found)


class StepDecisions:
    """Answers in step with the pass, which waits for them."""

    def __init__(self, predictor: Predictor, checkpoints: tuple[Checkpoint, ...]) -> None:
        self.checkpoints = checkpoints
        self._predictor = predictor

    def ask(
        self, look: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray
    ) -> Callable[[], tuple[np.ndarray, float]]:
        """Implement `Decisions.ask`."""
        chances = self._predictor.chances(look, states, tokens, priors)
        return lambda: (chances, 0.0)


class AsyncDecisions:
    """Answers by a thread beside the pass, which waits for those alone that are later than expected."""

    def __init__(self, predictor: Predictor, checkpoints: tuple[Checkpoint, ...], slows: float) -> None:
        """`slows`: the seconds that a second of the predictor's thread takes from a pass meanwhile: 0 on a core of
        its own."""
        self.checkpoints = checkpoints
        self._predictor, self._slows = predictor, slows
        self._thread = ThreadPoolExecutor(1, "early-exit")

    def ask(
        self, look: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray
    ) -> Callable[[], tuple[np.ndarray, float]]:
        """Implement `Decisions.ask`."""
        return self._thread.submit(self._answer, look, states, tokens, priors).result

    def _answer(
        self, look: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray
    ) -> tuple[np.ndarray, float]:
        started = time.thread_time()
        chances = self._predictor.chances(look, states, tokens, priors)
        return chances, self._slows * (time.thread_time() - started)
