"""Tokenize with a model folder's tokenizer: text to ids and back, equal to Hugging Face's, without transformers."""

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from pydantic import ValidationError

from app.answer_form import Thinking
from app.engine.text.call_syntax import END_OF_THINK, THINK, CallSyntax
from app.engine.text.chat_template import ChatTemplate
from app.engine.text.conversation import Conversations
from app.engine.text.grammar import Grammars
from app.errors import InvalidRequest, ModelRefused
from app.request import ChatMessage, Conversation, Sampling

FILE = "tokenizer.json"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
PIECE = 65_536  # characters; a longer text is likely to have too many tokens, and tried piece by piece
CUT_TOKENS = 256  # by far more than a cut between two pieces can add
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def tokenizer_sha256(folder: Path) -> str:
    """Hash a folder's tokenizer. Raises ModelRefused without one."""
    path = folder / FILE
    if not path.is_file():
        raise ModelRefused(f"{folder} has no {FILE}; only fast tokenizers can be served")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Tokenizer:
    """A model's tokenizer; immutable, and any thread may use it. Raises ModelRefused."""

    def __init__(self, folder: Path) -> None:
        self.sha256 = tokenizer_sha256(folder)  # a drafter must have the same
        path = folder / FILE
        self._backend = tokenizers.Tokenizer.from_file(str(path))
        self._long_text = threading.Lock()  # a mebi of characters takes a tenth of a gigabyte
        self._backend.no_truncation()
        self._backend.no_padding()
        config = _read_json(folder / "config.json")
        tokenizer_config = _read_json(folder / "tokenizer_config.json")
        self.special_tokens = _special_tokens(tokenizer_config)  # by their names
        self.template_source = source = _template_source(folder, tokenizer_config)
        self._conversations = None if source is None else Conversations(ChatTemplate(source, self.special_tokens))
        # Columns of the model's logits: ids from there on mean nothing.
        self.vocab_size = int(_text_config(config).get("vocab_size") or self._backend.get_vocab_size())
        self.context_tokens = _context_tokens(folder, config)  # of prompt and answer together
        generation = _read_json(folder / "generation_config.json")
        # What the model's makers sample with, for callers who do not say how.
        self.sampling = {name: generation[name] for name in SAMPLING if _is_valid(name, generation.get(name))}
        self.eos_ids = _eos_ids(
            generation.get("eos_token_id"),
            _text_config(config).get("eos_token_id"),
            self._backend.token_to_id(self.special_tokens.get("eos_token", "")),
        )
        # Special tokens that are text nevertheless: they divide an answer into its parts.
        marks = (THINK, END_OF_THINK, *(() if self.call_syntax is None else self.call_syntax.markers))
        self._marks = {
            id_: mark
            for mark in marks
            if (id_ := self.token_of(mark)) is not None and not self._backend.decode([id_], skip_special_tokens=True)
        }
        added = self._backend.get_added_tokens_decoder()
        # Names of the tokens that are no text.
        self.silent = {id_: one.content for id_, one in added.items() if one.special and id_ not in self._marks}
        self.grammars = Grammars(path, self.vocab_size, self.eos_ids)
        # Tokens that stand for one raw byte ("byte fallback"); their text depends on their neighbours.
        self.byte_ids = frozenset(
            id_ for byte in range(256) if (id_ := self._backend.token_to_id(f"<0x{byte:02X}>")) is not None
        )

    def encode(self, text: str, most: int | None = None, *, special: bool = True) -> list[int]:
        """Return ids, with the model's special tokens if `special`.

        Raises InvalidRequest for a lone surrogate, and as soon as there are surely more than `most`.
        """
        return self._encode(text, "prompt", most, add_special_tokens=special)

    def chat(self, messages: Sequence[ChatMessage], most: int | None = None, field: str = "messages") -> list[int]:
        """Return a conversation's ids in the model's template, up to the assistant's answer.

        Raises as `encode` does, naming `field`.
        """
        return self.conversation(Conversation.model_construct(messages=tuple(messages)), most, field)[0]

    def conversation(
        self, conversation: Conversation, most: int | None = None, field: str = "messages"
    ) -> tuple[list[int], Thinking]:
        """Return as `chat` does, and where the answer has its reasoning."""
        if self._conversations is None:
            raise InvalidRequest("messages", "this model has no chat template; send prompt and raw=true instead")
        text, thinking = self._conversations.render(conversation)
        return self._encode(text, field, most, add_special_tokens=False), thinking

    @property
    def call_syntax(self) -> CallSyntax | None:
        """Return how this model writes calls of tools; None: it has no chat template."""
        return None if self._conversations is None else self._conversations.syntax

    def prefix_ids(self, prefix: str) -> list[int]:
        """Return ids of an answer's text that the prompt ends with, there perhaps others of the same text."""
        return self.encode(prefix, special=False) if prefix else []

    def token_of(self, text: str) -> int | None:
        return self._backend.token_to_id(text)

    def decode(self, ids: Sequence[int]) -> str:
        ids = ids if isinstance(ids, list) else list(ids)
        if not self._marks.keys().isdisjoint(ids):
            return "".join(self._marked(ids))
        return str(self._backend.decode(ids, skip_special_tokens=True))

    def _marked(self, ids: list[int]) -> Iterator[str]:
        start = 0
        for i, id_ in enumerate(ids):
            if id_ in self._marks:
                yield self._backend.decode(ids[start:i], skip_special_tokens=True) + self._marks[id_]
                start = i + 1
        yield self._backend.decode(ids[start:], skip_special_tokens=True)

    def _encode(self, text: str, field: str, most: int | None, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:  # half a surrogate pair: JSON can carry it, UTF-8 cannot
            raise InvalidRequest(field, "must be valid Unicode, without lone surrogates") from error
        if most is None or len(text) <= PIECE:
            return self._ids(text, add_special_tokens)
        with self._long_text:
            surely = 0
            for begin in range(0, len(text), PIECE):
                surely += len(self._ids(text[begin : begin + PIECE], add_special_tokens)) - CUT_TOKENS
                if surely > most:
                    raise InvalidRequest(field, f"must have at most {most} tokens, and has more than {surely}")
            return self._ids(text, add_special_tokens)

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        # Unlike `encode` this releases the GIL, and keeps no places in the text.
        return list(self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)


def _is_valid(name: str, value: Any) -> bool:
    try:
        return value is not None and bool(Sampling.model_validate({name: value}))
    except ValidationError:
        return False


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelRefused(f"{path} is not a JSON object")
    return value


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in SPECIAL_TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _template_source(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = config.get("chat_template")
    if isinstance(value, list):  # several templates by name
        value = next((entry["template"] for entry in value if entry["name"] == "default"), None)
    return value if isinstance(value, str) else None


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _context_tokens(folder: Path, config: dict[str, Any]) -> int:
    for key in CONTEXT_KEYS:
        value = _text_config(config).get(key)
        if isinstance(value, int) and value > 0:
            return value
    raise ModelRefused(f"{folder}/config.json does not give the model's context length")


def _eos_ids(*candidates: Any) -> tuple[int, ...]:
    for value in candidates:
        if isinstance(value, int):
            return (value,)
        if isinstance(value, list) and value:
            return tuple(int(id_) for id_ in value)
    return ()
