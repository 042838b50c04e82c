"""Text out of tokens as they come: whole characters only, whatever the tokens are cut into."""

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"  # how a decoder writes bytes that are no character, or not yet one


class Detokenizer(Protocol):
    """The part of a tokenizer that text needs."""

    byte_ids: frozenset[int]

    def decode(self, ids: Sequence[int]) -> str: ...


class TextStream:
    """Text of a growing sequence. No character is ever split: bytes that are not one yet wait for their rest.

    All deltas and flush() together are decode(all tokens). How much text is out depends on how many tokens
    came, not on how they were cut: a second stream, fed the first N tokens, goes on where the first stood.
    Only a short window is decoded each time: the tokens behind the last delta (`_seen`; they decide whether a
    space follows) and those that came since (`_held`).
    """

    def __init__(self, tokenizer: Detokenizer) -> None:
        self._tokenizer = tokenizer
        self._seen: list[int] = []
        self._seen_text = ""
        self._held: list[int] = []
        self._in_bytes = False  # the last token with text was a byte token

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that `tokens` make certain; empty while a character is incomplete."""
        return "".join(self.pieces(tokens))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The delta of each token by itself; a character belongs to the token that completes it."""
        return [self._take(token) for token in tokens]

    def flush(self) -> str:
        """The text of what is still held, once no more tokens will come."""
        return self._advance(self._tokenizer.decode(self._seen + self._held)) if self._held else ""

    def _take(self, token: int) -> str:
        self._held.append(token)
        text = self._tokenizer.decode(self._seen + self._held)
        self._in_bytes = token in self._tokenizer.byte_ids or (self._in_bytes and not self._tokenizer.decode([token]))
        # what a byte token means is open until another kind ends their run: one bad byte spoils the whole run
        return "" if self._in_bytes or text.endswith(REPLACEMENT) else self._advance(text)

    def _advance(self, text: str) -> str:
        delta = text[len(self._seen_text) :]
        if delta:  # tokens without text (special ones) stay held: alone they are no context for a space
            self._seen, self._held = self._held, []
            self._seen_text = self._tokenizer.decode(self._seen)
        return delta
