"""Test that no number of a request may be true or false, in either API."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from app.request import GenerateRequest, SpeculationBounds
from web.openai.requests import ChatBody, CompletionBody

BODIES: dict[type[BaseModel], dict[str, Any]] = {
    GenerateRequest: {"prompt": "a"},
    SpeculationBounds: {},
    ChatBody: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    CompletionBody: {"model": "m", "prompt": "a"},
}


def with_a_boolean(described: dict[str, Any]) -> Any:
    """Put a boolean where a field's schema has a number; None: it has none."""
    for kind in described.get("anyOf", [described]):
        if kind.get("type") in ("integer", "number"):
            return True
        if kind.get("items", {}).get("type") == "integer":
            return [1, False]
        if isinstance(of := kind.get("additionalProperties"), dict) and of.get("type") == "number":
            return {"5": True}
    return None


CASES = [
    pytest.param(model, name, value, id=f"{model.__name__}.{name}")
    for model in BODIES
    for name, described in model.model_json_schema()["properties"].items()
    if (value := with_a_boolean(described)) is not None
]


@pytest.mark.parametrize(("model", "name", "value"), CASES)
def test_a_boolean_is_no_number(model: type[BaseModel], name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate({**BODIES[model], name: value})
    assert [(error["loc"], error["type"]) for error in caught.value.errors()] == [((name,), "value_error")]
    assert "true or false" in str(caught.value)


def test_all_numbers_are_tried() -> None:
    assert len(CASES) > 35
