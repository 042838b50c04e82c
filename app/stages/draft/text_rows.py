"""Hold texts in arrays for compiled code, a row each."""

from collections.abc import Iterable
from typing import Generic, TypeVar

import numpy as np

from kernels.host.own_matches import MatchedTexts
from kernels.host.phrase_tree import OwnTexts

Texts = TypeVar("Texts", MatchedTexts, OwnTexts)


class TextRows(Generic[Texts]):
    """Arrays with a row for each text, which grow."""

    def __init__(self, texts: Texts) -> None:
        self.texts: Texts = texts
        self._free = [*range(len(texts.tokens))]

    def take(self) -> int:
        """Return a free row, which keeps what its last text left."""
        if not self._free:
            held: int = len(self.texts.tokens)
            self._free = [*range(held, 2 * held)]
            self.texts = type(self.texts)(*_with_rows(self.texts, 2 * held))
        return self._free.pop()

    def reserve(self, length: int) -> None:
        tokens = self.texts.tokens
        if length > tokens.shape[1]:
            self.texts = self.texts._replace(tokens=_larger(tokens, (len(tokens), 2 * length)))

    def free(self, rows: Iterable[int]) -> None:
        self._free += rows


def _with_rows(arrays: Iterable[np.ndarray], rows: int) -> list[np.ndarray]:
    return [_larger(values, (rows, *values.shape[1:])) for values in arrays]


def _larger(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    larger = np.zeros(shape, values.dtype)
    larger[tuple(map(slice, values.shape))] = values
    return larger
