"""Split an answer's text into reasoning, content and calls of tools, as it comes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from app.answer_form import FunctionCall, Thinking, ToolCall
from app.engine.text.call_syntax import END_OF_THINK, THINK, CallSyntax
from app.engine.text.stop_strings import overlap
from app.engine.text.tokenizer import Tokenizer
from app.messages import Record


@dataclass(frozen=True, slots=True)
class CallPart:
    """The begin of a call, with its name, or more of its arguments."""

    index: int
    id: str | None
    name: str | None
    arguments: str = ""


@dataclass(slots=True)
class AnswerParts:
    content: str = ""
    reasoning: str = ""
    calls: list[CallPart] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class PartStream:
    """The parts of the text so far are the same, however it is cut. For one thread.

    White space around reasoning belongs to no part. What may be a mark waits for its rest; what a text that was cut off
    began of a call, up to its name, is content.

    `prefix`: text before it, whose parts are left out, but for a call that it does not end.
    """

    def __init__(self, request_id: str, thinking: Thinking, syntax: CallSyntax | None, prefix: str = "") -> None:
        self._request_id, self._syntax = request_id, syntax
        self._held = ""  # text of no part yet
        starts = {Thinking.NO: self._content, Thinking.FIRST: self._start, Thinking.INSIDE: self._reasoning}
        self._read = starts[thinking]
        self._has_content = False
        self._hidden = 0
        self._index = -1  # of the last call
        self._json = _JsonEnd()
        self._begun: list[CallPart] = []  # in the prefix
        if prefix:
            self._begun = self.feed(prefix).calls
        self._hidden = len(self._held)  # characters of the prefix

    @classmethod
    def of(cls, record: Record, tokenizer: Tokenizer) -> Self:
        return cls(record.id, record.thinking, tokenizer.call_syntax if record.calls else None, record.prefix)

    def feed(self, text: str, *, is_end: bool = False) -> AnswerParts:
        """Return the parts that are certain by now; with the end, all."""
        parts = AnswerParts(calls=self._begun)
        self._begun = []
        self._held += text
        read = None
        while read != self._read:
            read = self._read
            read(parts, is_end)
        return parts

    def _start(self, parts: AnswerParts, is_end: bool) -> None:
        text = self._held.lstrip()
        if text.startswith(THINK):
            self._held = text[len(THINK) :]
            self._read = self._reasoning
        elif is_end or not THINK.startswith(text):
            self._read = self._content

    def _reasoning(self, parts: AnswerParts, is_end: bool) -> None:
        text, mark, rest = self._held.partition(END_OF_THINK)
        if not self._has_content:  # of the reasoning
            text = text.lstrip()
        if mark:
            parts.reasoning += text.rstrip()
            self._held, self._has_content, self._read = rest, False, self._lead
            return
        sure = text if is_end else text[: len(text) - overlap(text, END_OF_THINK)]
        sure = sure.rstrip()
        parts.reasoning += sure
        self._held = text[len(sure) :]
        self._has_content = self._has_content or bool(sure)

    def _lead(self, parts: AnswerParts, is_end: bool) -> None:
        self._held = self._held.lstrip()
        if self._held or is_end:
            self._read = self._content

    def _content(self, parts: AnswerParts, is_end: bool) -> None:
        sure = len(self._held)
        if self._syntax is not None and (self._syntax.after_text or not self._has_content):
            sure = self._before_calls(self._syntax, parts, is_end)
        if self._read != self._content:
            return
        self._show(sure, parts)
        self._has_content = self._has_content or sure > 0

    def _show(self, sure: int, parts: AnswerParts) -> None:
        parts.content += self._held[self._hidden : sure]
        self._held, self._hidden = self._held[sure:], max(0, self._hidden - sure)

    def _before_calls(self, syntax: CallSyntax, parts: AnswerParts, is_end: bool) -> int:
        """Begin the first call if it is there. Return how many characters are content."""
        at = self._held.find(syntax.trigger)
        if at < 0 or (at and not syntax.after_text):
            if is_end or (not syntax.after_text and not syntax.trigger.startswith(self._held)):
                return len(self._held)
            return len(self._held) - overlap(self._held, syntax.trigger)
        head = syntax.first.match(self._held, at)
        if head is None:
            return len(self._held) if is_end else at
        self._show(at, parts)
        self._begin_call(head.group(1), head.end() - at, parts)
        return 0

    def _begin_call(self, name: str, end: int, parts: AnswerParts) -> None:
        self._index += 1
        parts.calls.append(CallPart(self._index, _call_id(self._request_id, self._index), name))
        self._held, self._hidden = self._held[end:], 0
        self._json = _JsonEnd()
        self._read = self._arguments

    def _arguments(self, parts: AnswerParts, is_end: bool) -> None:
        if not self._json.has_begun:
            self._held = self._held.lstrip()
        end = self._json.find(self._held)
        written = self._held if end is None else self._held[:end]
        if written and parts.calls and parts.calls[-1].index == self._index:  # clients want one part a call and chunk
            parts.calls[-1] = replace(parts.calls[-1], arguments=parts.calls[-1].arguments + written)
        elif written:
            parts.calls.append(CallPart(self._index, None, None, written))
        self._held = self._held[len(written) :]
        if end is not None:
            self._read = self._after_call

    def _after_call(self, parts: AnswerParts, is_end: bool) -> None:
        assert self._syntax is not None
        if self._syntax.between is not None and (head := self._syntax.following.match(self._held)):
            self._begin_call(head.group(1), head.end(), parts)


class _JsonEnd:
    """Find where a JSON object ends, read piece by piece."""

    def __init__(self) -> None:
        self.has_begun = False
        self._depth = 0
        self._in_string = self._is_escaped = False

    def find(self, text: str) -> int | None:
        self.has_begun = self.has_begun or bool(text)
        for i, character in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_string:
                self._is_escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return i + 1
        return None


def calls_of(parts: Sequence[CallPart]) -> tuple[ToolCall, ...]:
    """Join the parts of calls; arguments that were cut off stay so."""
    by_call: dict[int, list[CallPart]] = {}
    for part in parts:
        by_call.setdefault(part.index, []).append(part)
    return tuple(
        ToolCall.model_construct(
            id=begin.id or "",
            function=FunctionCall.model_construct(
                name=begin.name or "", arguments=begin.arguments + "".join(part.arguments for part in more)
            ),
        )
        for begin, *more in by_call.values()
    )


def _call_id(request_id: str, index: int) -> str:
    """Nine letters and digits, as Mistral's templates want, the same however the answer is read."""
    return hashlib.sha256(f"{request_id}:{index}".encode()).hexdigest()[:9]
