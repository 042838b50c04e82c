"""Render a model's chat template as Hugging Face's `apply_chat_template` does.

Templates come with models and are not trusted: they run in jinja's immutable sandbox and see plain strings only.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.errors import InvalidRequest, ModelRefused

Turn = dict[str, Any]


class ChatTemplate:
    """A compiled template. Raises ModelRefused."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ModelRefused(f"the model's chat template does not compile: {error}") from error

    def render(self, turns: Sequence[Turn], variables: Mapping[str, Any] | None = None) -> str:
        """Return the conversation up to the assistant's answer, or to what `variables` say. Raises InvalidRequest."""
        values = {"add_generation_prompt": True, **self._special_tokens, **(variables or {}), "messages": turns}
        try:
            return self._template.render(values)
        except (TemplateError, TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest("messages", f"the model's chat template refuses the messages: {error}") from error


class _Generation(Extension):
    """The tag `{% generation %}`, which marks answers for training, is ignored."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    # jinja's own tojson escapes HTML, which no model was trained on
    environment.filters["tojson"] = _to_json
    helpers: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    environment.globals.update(helpers)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)
