"""A grammar's mask depends on the tokens before alone, and an answer under it is JSON of the schema."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.text.grammar import Grammars
from app.engine.text.tokenizer import Tokenizer
from tests.models import byte_fallback_tokenizer, model_dir

EOS = 2
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(model_dir())


def walk(tokenizer: Tokenizer, schema: dict[str, Any], seed: int, most: int = 120) -> list[int]:
    """Draw tokens, each one allowed, up to the end token."""
    draw, state = random.Random(seed), tokenizer.grammars.state(json.dumps(schema))
    tokens: list[int] = []
    while EOS not in tokens and len(tokens) < most:
        mask = state.mask(tokens)
        assert mask is not None and mask.shape == (tokenizer.vocab_size,)
        tokens.append(int(draw.choice(np.flatnonzero(mask))))
    return tokens


@pytest.mark.parametrize("seed", range(5))
def test_an_allowed_answer_ends_as_the_schema_says(tokenizer: Tokenizer, seed: int) -> None:
    *tokens, end = walk(tokenizer, PERSON, seed)
    assert end == EOS
    answer = json.loads(tokenizer.decode(tokens))
    assert list(answer) == ["name", "age", "tags"]
    assert len(answer["name"]) <= 12 and 0 <= answer["age"] <= 150
    assert 1 <= len(answer["tags"]) <= 3 and set(answer["tags"]) <= {"red", "green"}


def test_any_object_begins_with_a_brace_and_ends_where_closed(tokenizer: Tokenizer) -> None:
    state = tokenizer.grammars.state('{"type": "object"}')
    first = state.mask([])
    assert first is not None
    assert {tokenizer.decode([int(id_)]).lstrip()[:1] for id_ in np.flatnonzero(first)} <= {"{", ""}
    closed = state.mask(tokenizer.encode('{"a": [1, {"b": null}]}'))
    assert closed is not None and EOS in np.flatnonzero(closed)


def test_a_mask_depends_on_the_tokens_before_alone(tokenizer: Tokenizer) -> None:
    """The masks are read along one branch, then another, as trees and takeovers do."""
    draw = random.Random(0)
    branches = [walk(tokenizer, PERSON, seed)[:-1] for seed in range(4)]
    state = tokenizer.grammars.state(json.dumps(PERSON))
    for _ in range(40):
        branch = draw.choice(branches)
        history = branch[: draw.randint(0, len(branch))]
        if draw.random() < 0.3:
            history = [*history, EOS, 7]  # what no grammar allows: a wrong draft
        fresh = tokenizer.grammars.state(json.dumps(PERSON)).mask(history)
        found = state.mask(history)
        assert (found is None) == (fresh is None)
        assert found is None or fresh is None or np.array_equal(found, fresh)


def test_a_forbidden_history_has_no_successor(tokenizer: Tokenizer) -> None:
    state = tokenizer.grammars.state(json.dumps(PERSON))
    assert state.mask(tokenizer.encode("Hello")) is None
    assert state.mask([]) is not None


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "nonsense"}, "nonsense"),
        ({"not": {"type": "string"}}, "not"),
        ({"$ref": "#/definitions/x"}, "definitions/x"),
        ({"type": "string", "pattern": "("}, "unclosed"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "Unsatisfiable"),
        ({"$ref": "#"}, "no token satisfies the form"),
        ({"type": ["null", "object"], "properties": {f"p{i}": {"type": "integer"} for i in range(500)}}, "2007 items"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_explained(
    tokenizer: Tokenizer, schema: dict[str, Any], words: str
) -> None:
    fault = tokenizer.grammars.fault(json.dumps(schema))
    assert fault is not None and words in fault
    assert tokenizer.grammars.fault(json.dumps(PERSON)) is None


def test_models_that_cannot_end_or_be_read_say_so(tmp_path: Path) -> None:
    assert "no end token" in str(Grammars(model_dir() / "tokenizer.json", 49152, ()).fault("{}"))
    strange = tmp_path / "tokenizer.json"
    strange.write_text("{}")
    grammars = Grammars(strange, 10, (1,))
    grammars.prepare()
    assert grammars.fault("{}") is not None


def test_a_tokens_bytes_are_its_part_of_the_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for one in (tokenizer, Tokenizer(byte_fallback_tokenizer(tmp_path))):
        ids = one.encode("Hello é 日本 👩‍🚀 !")
        text = b"".join(one.grammars.bytes_of(id_) or b"?" for id_ in ids).decode()
        assert text.strip() == one.decode(ids).strip()
