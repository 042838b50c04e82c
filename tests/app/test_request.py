"""Test the bounds of a request, whatever door it comes through."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.answer_form import MAX_FORM_CHARACTERS
from app.request import MAX_CHARACTERS, MAX_MESSAGES, GenerateRequest


def turns(count: int, characters: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": "a" * characters}] * count


def schema(characters: int) -> dict[str, Any]:
    named = {"schema": {"description": "a" * (characters - len('{"description": ""}'))}}
    return {"type": "json_schema", "json_schema": named}


@pytest.mark.parametrize(
    ("most", "beyond"),
    [
        ({"prompt": "a" * MAX_CHARACTERS}, {"prompt": "a" * (MAX_CHARACTERS + 1)}),
        ({"prompt": "a"}, {"prompt": ""}),
        ({"messages": turns(4, MAX_CHARACTERS // 4)}, {"messages": turns(4, MAX_CHARACTERS // 4 + 1)}),
        ({"messages": turns(MAX_MESSAGES, 1)}, {"messages": turns(MAX_MESSAGES + 1, 1)}),
        ({"response_format": schema(MAX_FORM_CHARACTERS)}, {"response_format": schema(MAX_FORM_CHARACTERS + 1)}),
    ],
    ids=["prompt", "no prompt", "contents", "messages", "schema"],
)
def test_a_text_beyond_its_bound_is_refused_by_name(most: dict[str, Any], beyond: dict[str, Any]) -> None:
    rest: dict[str, Any] = {"prompt": "a"} if "response_format" in most else {}
    assert GenerateRequest(**most, **rest)
    with pytest.raises(ValidationError) as caught:
        GenerateRequest(**beyond, **rest)
    (error,) = caught.value.errors()
    assert error["loc"][0] in beyond and "at " in error["msg"]
