"""Constrain answers to a form by llguidance: a JSON schema, or a grammar in its Lark syntax.

The mask is a function of the generated tokens alone, so it forks along a tree (design D1).
"""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from app.answer_form import ANY_OBJECT, ResponseFormat, closed
from app.engine.text.call_syntax import WHITESPACE
from app.errors import GenerationFailed

LOOKS = 16  # first tokens of a form whose successors are looked at


class Grammars:
    """The grammars of one tokenizer, read at its first use in some tenths of a second."""

    def __init__(self, tokenizer_file: Path, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self._file, self._vocab_size, self._eos_ids = tokenizer_file, vocab_size, eos_ids

    def fault(self, grammar: str, prefix: Sequence[int] = ()) -> str | None:
        """Say why no answer can follow the form behind `prefix`."""
        if not self._eos_ids:
            return "this model has no end token, so no answer of it can end where a form does"
        try:
            compiled = _compiled(grammar)
        except ValueError as error:  # not a schema at all
            return str(error)
        if isinstance(self._tokens, str):
            return f"not with this model's tokenizer: {self._tokens}"
        is_wrong, words = LLMatcher.validate_grammar_with_warnings(compiled, self._tokens)
        if is_wrong:
            return words[0]
        try:
            state = self.state(grammar, prefix)
            first = state.mask(())
            # Too many alternatives, as of 500 properties, stand behind the bracket.
            for token in () if first is None else np.flatnonzero(first)[:LOOKS].tolist():
                state.mask((token,))
        except GenerationFailed as error:  # a schema that refers to itself alone, say
            return str(error)
        return None

    def state(self, grammar: str, prefix: Sequence[int] = ()) -> "GrammarState":
        """Begin behind the tokens `prefix` of the answer. Raises GenerationFailed if the form does not allow them."""
        assert not isinstance(self._tokens, str), self._tokens
        matcher = LLMatcher(self._tokens, _compiled(grammar), log_level=0)
        if matcher.try_consume_tokens([*prefix]) < len(prefix):
            raise GenerationFailed("the message to go on with does not follow the form")
        return GrammarState(matcher, self._vocab_size)

    def bytes_of(self, token: int) -> bytes | None:
        """Return a token's bytes in UTF-8, if the tokenizer can be read."""
        return None if isinstance(self._tokens, str) else bytes(self._tokens.decode_bytes([token]))

    def prepare(self) -> None:
        _ = self._tokens

    @cached_property
    def _tokens(self) -> LLTokenizer | str:
        try:
            return LLTokenizer(str(self._file), n_vocab=self._vocab_size, eos_token=list(self._eos_ids) or None)
        except ValueError as error:
            return str(error)


class GrammarState:
    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._start, self._vocab_size = matcher, vocab_size
        self._matcher = matcher.deep_copy()
        self._read: list[int] = []

    def is_free(self, generated: int) -> bool:
        return False

    def mask(self, generated: Sequence[int]) -> np.ndarray | None:
        """Return the tokens that may follow `generated`, (V,) bool; None if that is not allowed itself.

        Raises GenerationFailed when the grammar became too complex.
        """
        generated = list(generated)
        common = min(len(self._read), len(generated))
        while self._read[:common] != generated[:common]:
            common -= 1
        self._matcher.rollback(len(self._read) - common)
        taken = self._matcher.try_consume_tokens(generated[common:])
        self._read = generated[: common + taken]
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8) if len(self._read) == len(generated) else None
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("\n")[0]  # the lines below are the library's state
            self._matcher, self._read = self._start.deep_copy(), []  # it can still answer for other tokens
            raise GenerationFailed(f"no token satisfies the form at this position: {reason}")
        return None if bits is None else np.unpackbits(bits, bitorder="little", count=self._vocab_size).view(bool)


def grammar_of(form: ResponseFormat) -> str | None:
    """Write a form as `Grammars` read it; None: the answer is free. The order of a schema's properties counts."""
    match form.type:
        case "json_schema":
            assert form.json_schema is not None
            schema = form.json_schema.json_schema
            return json.dumps(closed(schema) if form.json_schema.strict else schema)
        case "json_object":
            return ANY_OBJECT
        case "regex":
            return "start: /" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", form.regex or "") + "/"
        case "choice":
            return "start: " + " | ".join(json.dumps(one) for one in form.choice or ())
        case "grammar":
            return form.grammar
    return None


def rule_of(grammar: str) -> str:
    """Write a form that has one rule, as the body of a rule of a larger grammar."""
    if not grammar.startswith("{"):
        return grammar.removeprefix("start: ")
    return "%json " + json.dumps({**json.loads(grammar), "x-guidance": {"whitespace_pattern": WHITESPACE}})


def _compiled(grammar: str) -> str:
    if grammar.startswith("{"):
        return LLMatcher.grammar_from_json_schema(grammar, defaults={"whitespace_pattern": WHITESPACE})
    return LLMatcher.grammar_from_lark(grammar)
