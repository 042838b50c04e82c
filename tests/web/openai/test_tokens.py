"""Test the routes that turn texts into tokens and back."""

from typing import Any

import pytest
from flask.testing import FlaskClient

from app.engine.text.tokenizer import Tokenizer
from app.request import ChatMessage


def test_a_text_becomes_tokens_and_comes_back(client: FlaskClient, tokenizer: Tokenizer) -> None:
    text = "Two words, \u00e9t\u00e9"
    found = client.post("/tokenize", json={"prompt": text}).json
    assert found == {
        "count": len(found["tokens"]),
        "max_model_len": tokenizer.context_tokens,
        "tokens": tokenizer.encode(text),
    }
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json == {"prompt": text}


def test_a_conversation_becomes_the_tokens_that_a_chat_has(client: FlaskClient, tokenizer: Tokenizer) -> None:
    found = client.post("/tokenize", json={"messages": [{"role": "user", "content": "Hi"}]}).json
    assert found["tokens"] == tokenizer.chat([ChatMessage(role="user", content="Hi")])


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, "body"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "body"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "another"}, "model"),
        ("/tokenize", {"prompt": "\ud800"}, None),
        ("/tokenize", {"prompt": "a", "surprise": 1}, "surprise"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_wrong_bodies_name_the_field(client: FlaskClient, path: str, body: dict[str, Any], field: str | None) -> None:
    response = client.post(path, json=body)
    assert response.status_code in (400, 404), response.text
    assert field is None or response.json["error"]["field"] == field


def test_clients_that_tokenise_find_templates_and_special_tokens(client: FlaskClient, tokenizer: Tokenizer) -> None:
    info = client.get("/tokenizer_info").json
    assert client.post("/tokenize", json={"prompt": info["eos_token"]}).json["tokens"] == [*tokenizer.eos_ids]
    assert "<|im_start|>" in info["chat_template"] and info["model_max_length"] == tokenizer.context_tokens


def test_health_and_version(client: FlaskClient) -> None:
    assert client.get("/health").status_code == client.get("/readyz").status_code
    assert client.get("/version").json["version"][0].isdigit()
