"""Find where stop strings end an answer, however its tokens are cut into runs.

The first complete one counts, at the same character the longest.
"""

from collections.abc import Sequence

from app.engine.text.detokenizer import Detokenizer, TextStream


def up_to_stop(text: str, stop: Sequence[str]) -> str:
    found = _first_stop(text, stop)
    return text if found is None else text[: found[0]]


class AnswerStream:
    """A TextStream that stop strings end; a possible beginning of one waits for its rest. For one thread.

    `read` counts the characters that tokens made certain, `shown` those sent.
    """

    def __init__(self, tokenizer: Detokenizer, stop: Sequence[str]) -> None:
        self._text = TextStream(tokenizer)
        self._stop = stop
        self._held = ""
        self.stopped_by: str | None = None  # a stop string; no more text will come
        self.read = self.shown = 0

    def feed(self, tokens: Sequence[int]) -> str:
        return "".join(self.pieces(tokens))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [self._release(piece) for piece in self._text.pieces(tokens)]

    def after(self, tokens: Sequence[int]) -> str:
        """Return how the text would go on with these tokens, stop strings apart."""
        return self._text.after(tokens)

    def flush(self) -> str:
        text = self._release(self._text.flush())
        held, self._held = self._held, ""
        self.shown += len(held)
        return text + held

    def _release(self, piece: str) -> str:
        if self.stopped_by is not None:
            return ""
        self.read += len(piece)
        text = self._held + piece
        found = _first_stop(text, self._stop)
        if found is None:
            end = len(text) - max((overlap(text, stop) for stop in self._stop), default=0)
            self._held = text[end:]
        else:
            end, self.stopped_by = found
            self._held = ""
        self.shown += end
        return text[:end]


LOOK_BACK = 8  # tokens


class StopWatch:
    def __init__(self, tokenizer: Detokenizer, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._read = -1  # tokens fed to `_answer`; -1: not known any more
        self._last: list[int] = []  # of them: notices a sequence that changed
        self._answer = AnswerStream(tokenizer, stop)

    def first(self, tokens: Sequence[int], start: int, run: Sequence[int], *, is_end: bool) -> int | None:
        """Return the index into `run` of the first token that completes a stop string, or None.

        `run` follows `tokens`, in which the answer begins at `start`. `is_end`: no token follows the run.
        """
        if self._read != len(tokens) - start or self._last != tokens[max(start, len(tokens) - LOOK_BACK) :]:
            self._answer = AnswerStream(self._tokenizer, self._stop)
            self._answer.feed(tokens[start:])
        self._read = -1
        for i, token in enumerate(run):
            self._answer.feed([token])
            if self._answer.stopped_by is not None:
                return i
        if is_end:
            self._answer.flush()
            return len(run) - 1 if self._answer.stopped_by is not None else None
        self._read = len(tokens) - start + len(run)
        self._last = [*tokens[max(start, len(tokens) - LOOK_BACK) :], *run][-LOOK_BACK:]
        return None


def _first_stop(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """Return where it begins, and which it is."""
    found = [(start + len(one), start, one) for one in stop if (start := text.find(one)) >= 0]
    return min(found)[1:] if found else None


def overlap(text: str, stop: str) -> int:
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
