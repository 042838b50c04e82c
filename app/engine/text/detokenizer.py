"""Turn tokens into text incrementally: whole characters only, in any division into runs."""

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"  # how a decoder writes bytes that are no character, or not yet one


class Detokenizer(Protocol):
    byte_ids: frozenset[int]  # tokens that stand for one raw byte

    def decode(self, ids: Sequence[int]) -> str: ...


class TextStream:
    """Incomplete bytes wait for their rest. For one thread.

    A call decodes the tokens behind the last delta (`_seen`: they decide whether a space follows) and those since
    (`_held`).
    """

    def __init__(self, tokenizer: Detokenizer) -> None:
        self._tokenizer = tokenizer
        self._seen: list[int] = []
        self._seen_text = ""
        self._held: list[int] = []
        self._in_bytes = False  # the last token with text was a byte token

    def feed(self, tokens: Sequence[int]) -> str:
        return "".join(self.pieces(tokens))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return each token's own delta; a character belongs to the token that completes it."""
        return [self._take(token) for token in tokens]

    def after(self, tokens: Sequence[int]) -> str:
        """Return how the text would go on with these tokens, without taking them."""
        return self._tokenizer.decode([*self._seen, *self._held, *tokens])[len(self._seen_text) :]

    def flush(self) -> str:
        return self._advance(self._tokenizer.decode(self._seen + self._held)) if self._held else ""

    def _take(self, token: int) -> str:
        self._held.append(token)
        text = self._tokenizer.decode(self._seen + self._held)
        self._in_bytes = token in self._tokenizer.byte_ids or (self._in_bytes and not self._tokenizer.decode([token]))
        # A byte token's text is open until another kind of token ends the run: one bad byte spoils all of it.
        return "" if self._in_bytes or text.endswith(REPLACEMENT) else self._advance(text)

    def _advance(self, text: str) -> str:
        delta = text[len(self._seen_text) :]
        if delta:  # tokens without text (special ones) stay held: alone they are no context for a space
            self._seen, self._held = self._held, []
            self._seen_text = self._tokenizer.decode(self._seen)
        return delta
