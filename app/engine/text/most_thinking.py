"""Force the mark that ends an answer's reasoning once this has its most tokens."""

from collections.abc import Sequence

import numpy as np

from app.state import Grammar


class MostThinking:
    """A grammar of its own, or a bound on another. Implements `Grammar`.

    `begin`: the token that begins the reasoning; None: the prompt has begun it. `end`: the token that ends it.
    """

    def __init__(self, most: int, begin: int | None, end: int, vocab_size: int, grammar: Grammar | None = None) -> None:
        self._most, self._begin, self._end, self._grammar = most, begin, end, grammar
        self._free = np.ones(vocab_size, np.bool_)
        self._forced = ~self._free
        self._forced[end] = True

    def is_free(self, generated: int) -> bool:
        is_ended = self._begin is None and generated > self._most
        return is_ended and (self._grammar is None or self._grammar.is_free(generated))

    def mask(self, generated: Sequence[int]) -> np.ndarray | None:
        found = self._free if self._grammar is None else self._grammar.mask(generated)
        return self._forced if found is not None and self._is_full(generated) else found

    def _is_full(self, generated: Sequence[int]) -> bool:
        if len(generated) < self._most or self._end in generated:
            return False
        if self._begin is None:
            return True
        return self._begin in generated and len(generated) - generated.index(self._begin) > self._most
