"""Describe how a model writes calls of tools, as its chat template shows it to the model.

    opening, then calls with `between` between them, then closing
    call: before_name NAME before_arguments ARGUMENTS [before_id ID] after_arguments

White space in these texts may be any, or none: models differ in it from their own templates.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from app.answer_form import Function, Thinking, ToolCall

WHITESPACE = r"[\x20\x0A\x0D\x09]{1,20}"  # in JSON; an unsure model would fill its answer with line breaks
SPACE = r"[ \n]{0,2}"  # where the syntax has white space
THINK, END_OF_THINK = "<think>", "</think>"
TokenOf = Callable[[str], int | None]


@dataclass(frozen=True)
class CallSyntax:
    """`trigger` begins calls; nothing else follows them. A syntax without `between` has one call in an answer."""

    trigger: str
    before_name: str
    before_arguments: str
    after_arguments: str = ""
    before_id: str | None = None
    between: str | None = ""
    opening: str = ""
    closing: str = ""
    after_text: bool = True  # calls may follow free text
    markers: tuple[str, ...] = ()  # that tokenizers may have as tokens

    def write(self, calls: Sequence[ToolCall]) -> str:
        return self.opening + (self.between or "").join(map(self._write, calls)) + self.closing

    @cached_property
    def first(self) -> re.Pattern[str]:
        """Match from the trigger to the first call's arguments; group 1 is the name."""
        return re.compile(_loose(self.opening) + self._head)

    @cached_property
    def following(self) -> re.Pattern[str]:
        """Match from the end of a call's arguments to those of the next; group 1 is the name."""
        id_ = "" if self.before_id is None else _loose(self.before_id) + '[^"]*'
        return re.compile(id_ + _loose(self.after_arguments) + _loose(self.between or "") + self._head)

    def grammar(
        self,
        functions: Sequence[Function],
        token_of: TokenOf,
        *,
        is_required: bool,
        several: bool,
        thinking: Thinking = Thinking.NO,
        form: str | None = None,
    ) -> str:
        """Write a Lark grammar of calls of `functions`, and of other answers unless a call is required.

        `form`: the body of a rule for these other answers; None: free text.
        """
        tokens = {one: token for one in self.markers if (token := token_of(one)) is not None}
        head = (self.opening + self.before_name)[len(self.trigger) :]
        rules = {
            "calls": f"{_lark(head, tokens)} call",
            "call": " | ".join(self._call(one, tokens) for one in functions),
            "TEXT": r"/(.|\n)*/",
        }
        if several and self.between is not None:
            rules["calls"] += f" ({_lark(self.between + self.before_name, tokens)} call)*"
        rules["calls"] += " " + _lark(self.closing, tokens)
        trigger = _lark(self.trigger, tokens)
        if is_required:
            answer = f"{trigger} calls"
        elif form is not None:
            answer = f"form | {trigger} calls"
            rules["form"] = form
        else:
            text, token = "TEXT " if self.after_text else "", tokens.get(self.trigger)
            answer = f"TEXT | trigger calls{'' if token is None else f' | {text}<[{token}]> calls'}"
            rules["trigger[lazy]"] = text + json.dumps(self.trigger)
        rules["start"] = f"{_thought(thinking, token_of)}({answer})"
        return "%llguidance {}\n" + "".join(f"{name}: {body}\n" for name, body in rules.items())

    @property
    def _head(self) -> str:
        return _loose(self.before_name) + "([a-zA-Z0-9_.-]+)" + _loose(self.before_arguments)

    def _write(self, call: ToolCall) -> str:
        arguments = json.dumps(json.loads(call.function.arguments), ensure_ascii=False)
        id_ = "" if self.before_id is None else self.before_id + call.id
        return f"{self.before_name}{call.function.name}{self.before_arguments}{arguments}{id_}{self.after_arguments}"

    def _call(self, function: Function, tokens: dict[str, int]) -> str:
        # Schemas of tools use what no grammar can hold, as formats; only `strict` refuses it.
        options = {"whitespace_pattern": WHITESPACE, "lenient": not function.strict}
        schema = json.dumps({**function.arguments, "x-guidance": options})
        id_ = "" if self.before_id is None else f"{_lark(self.before_id, tokens)} /[a-zA-Z0-9]{{9}}/ "
        head = _lark(self.before_arguments, tokens)
        return f'"{function.name}" {head} %json {schema} {id_}{_lark(self.after_arguments, tokens)}'


def _thought(thinking: Thinking, token_of: TokenOf) -> str:
    think, end = token_of(THINK), token_of(END_OF_THINK)
    if thinking is Thinking.NO or think is None or end is None:
        return ""
    begin = f"<[{think}]> " if thinking is Thinking.FIRST else ""
    return rf"({begin}TEXT <[{end}]> /[ \n]*/)? "


def _loose(text: str) -> str:
    return r"\s*".join(map(re.escape, _pieces(text)))


def _pieces(text: str) -> list[str]:
    """Split at white space; an empty piece stands where the text begins or ends with it."""
    return re.split(r"\s+", text)


def _lark(text: str, tokens: dict[str, int]) -> str:
    """Write what matches `text`, its markers as tokens or as text."""
    parts = re.split(f"({'|'.join(map(re.escape, tokens))})", text) if tokens else [text]
    found = []
    for part in filter(None, parts):
        if part in tokens:
            found.append(f"(<[{tokens[part]}]> | {json.dumps(part)})")
        else:
            pattern = SPACE.join(re.escape(piece).replace("/", r"\/") for piece in _pieces(part))
            found.append(f"/{pattern}/")
    return " ".join(found)


_XML = ("<tool_call>", "</tool_call>")
SYNTAXES = (
    CallSyntax(  # Qwen, Hermes, SmolLM3
        trigger="<tool_call>",
        before_name='<tool_call>\n{"name": "',
        before_arguments='", "arguments": ',
        after_arguments="}\n</tool_call>",
        between="\n",
        markers=_XML,
    ),
    CallSyntax(  # SmolLM2
        trigger="<tool_call>",
        opening="<tool_call>[",
        before_name='{"name": "',
        before_arguments='", "arguments": ',
        after_arguments="}",
        between=", ",
        closing="]</tool_call>",
        markers=_XML,
    ),
    CallSyntax(  # Mistral since 2025
        trigger="[TOOL_CALLS]",
        before_name="[TOOL_CALLS]",
        before_arguments="[ARGS]",
        markers=("[TOOL_CALLS]", "[ARGS]"),
    ),
    *(
        CallSyntax(  # Mistral until then, with ids and without
            trigger="[TOOL_CALLS]",
            opening="[TOOL_CALLS] [",
            before_name='{"name": "',
            before_arguments='", "arguments": ',
            before_id=before_id,
            after_arguments="}" if before_id is None else '"}',
            between=", ",
            closing="]",
            markers=("[TOOL_CALLS]",),
        )
        for before_id in (', "id": "', None)
    ),
    CallSyntax(  # Llama 3
        trigger='{"name"',
        before_name='{"name": "',
        before_arguments='", "parameters": ',
        after_arguments="}",
        between=None,
        after_text=False,
    ),
)
DESCRIBED = SYNTAXES[1]  # what models are told to write whose template has no syntax of these


def syntax_of(text: str, calls: Sequence[ToolCall]) -> CallSyntax | None:
    """Find the syntax in which `text` has `calls`, whatever its white space."""
    squeezed = _squeezed(text)
    return next((one for one in SYNTAXES if _squeezed(one.write(calls)) in squeezed), None)


def _squeezed(text: str) -> str:
    return "".join(text.split())
