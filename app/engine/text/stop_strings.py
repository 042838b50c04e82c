"""Stop strings: where an answer's text ends, in a whole text, in a stream of tokens, and in a run of drafted ones.

The one that is complete first counts, of those complete at the same character the longest; it is no part of the text.
What has been generated counts, the prompt does not. All here depends on the tokens alone, never on how they are cut
into runs, so a stream, its resumption and the result agree, and so does a verifier that takes a request over.
"""

from collections.abc import Sequence

from app.engine.text.detokenizer import Detokenizer, TextStream


def up_to_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the stop string; all of it if there is none."""
    return text[: _stop_at(text, stop)]


class AnswerStream:
    """TextStream for an answer that stop strings end. What could be the beginning of one waits for its rest.

    `read` counts the characters that tokens made certain, `shown` those that went out.
    """

    def __init__(self, tokenizer: Detokenizer, stop: Sequence[str]) -> None:
        self._text = TextStream(tokenizer)
        self._stop = stop
        self._held = ""
        self.has_stopped = False  # no more text will come
        self.read = self.shown = 0

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that `tokens` make certain."""
        return "".join(self.pieces(tokens))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The delta of each token by itself; a character belongs to the token that makes it certain."""
        return [self._release(piece) for piece in self._text.pieces(tokens)]

    def flush(self) -> str:
        """The text of what is still held, once no more tokens will come."""
        text = self._release(self._text.flush())
        held, self._held = self._held, ""
        self.shown += len(held)
        return text + held

    def _release(self, piece: str) -> str:
        if self.has_stopped:
            return ""
        self.read += len(piece)
        text = self._held + piece
        end = _stop_at(text, self._stop)
        self.has_stopped = end is not None
        if end is None:
            end = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = "" if self.has_stopped else text[end:]
        self.shown += end
        return text[:end]


class StopWatch:
    """Finds the token that completes a stop string, for one growing sequence."""

    def __init__(self, tokenizer: Detokenizer, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._read: list[int] | None = None  # what `_answer` has been fed; None: not known any more
        self._answer = AnswerStream(tokenizer, stop)

    def first(self, generated: list[int], run: Sequence[int], *, is_end: bool) -> int | None:
        """Index into `run`, which follows the `generated` tokens, of the first token that completes a stop string.

        `is_end`: no token will follow the run, so what is still open counts as it stands.
        """
        if self._read != generated:
            self._answer = AnswerStream(self._tokenizer, self._stop)
            self._answer.feed(generated)
        self._read = None
        for i, token in enumerate(run):
            self._answer.feed([token])
            if self._answer.has_stopped:
                return i
        if is_end:
            self._answer.flush()
            return len(run) - 1 if self._answer.has_stopped else None
        self._read = [*generated, *run]
        return None


def _stop_at(text: str, stop: Sequence[str]) -> int | None:
    """Where the first complete stop string begins."""
    found = [(start + len(one), start) for one in stop if (start := text.find(one)) >= 0]
    return min(found)[1] if found else None


def _overlap(text: str, stop: str) -> int:
    """How many characters at the text's end could be the beginning of the stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
