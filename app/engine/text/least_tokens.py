"""Forbid the tokens that end an answer until it has its least number of tokens."""

from collections.abc import Sequence

import numpy as np

from app.state import Grammar


class LeastTokens:
    """A grammar of its own, or a bound on another. Implements `Grammar`."""

    def __init__(self, least: int, end_ids: Sequence[int], vocab_size: int, grammar: Grammar | None = None) -> None:
        self._least, self._grammar = least, grammar
        self._free = np.ones(vocab_size, np.bool_)
        self._goes_on = self._free.copy()
        self._goes_on[list(end_ids)] = False

    def is_free(self, generated: int) -> bool:
        return generated >= self._least and (self._grammar is None or self._grammar.is_free(generated))

    def mask(self, generated: Sequence[int]) -> np.ndarray | None:
        own = self._goes_on if len(generated) < self._least else self._free
        if self._grammar is None:
            return own
        found = self._grammar.mask(generated)
        if found is None:
            return None
        both = found & own
        return both if both.any() else found  # only the end may follow a complete form
