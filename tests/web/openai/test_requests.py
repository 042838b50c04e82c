"""Test that numbers and booleans are told apart, and that both APIs state the same bounds."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from app.errors import Unsupported
from app.request import GenerateRequest, SpeculationBounds
from web.api.routes import GenerateBody
from web.openai.requests import SAMPLING, ChatBody, CompletionBody, StreamOptions

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


BOOLEANS = [
    pytest.param(model, name, id=f"{model.__name__}.{name}")
    for model in (GenerateBody, SpeculationBounds, StreamOptions, ChatBody, CompletionBody)
    for name, described in model.model_json_schema()["properties"].items()
    if name != "speculation" and "boolean" in (kind.get("type") for kind in described.get("anyOf", [described]))
]


@pytest.mark.parametrize(("model", "name"), BOOLEANS)
def test_a_number_is_no_boolean(model: type[BaseModel], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate({**BODIES.get(model, {"prompt": "a"}), name: 0})
    assert (name,) in [error["loc"] for error in caught.value.errors()]


def test_all_booleans_are_tried() -> None:
    assert len(BOOLEANS) == 24


@pytest.mark.parametrize("model", [ChatBody, CompletionBody])
@pytest.mark.parametrize("name", sorted({*SAMPLING} - {"seed"}))
def test_openais_fields_have_the_bounds_of_a_generate_request(model: type[BaseModel], name: str) -> None:
    stated, own = (kinds(of.model_json_schema()["properties"][name]) for of in (model, GenerateRequest))
    assert stated == own


def kinds(described: dict[str, Any]) -> list[dict[str, Any]]:
    """List what a field may be beside null."""
    plain = {key: value for key, value in described.items() if key not in ("default", "description", "title")}
    return [kind for kind in plain.get("anyOf", [plain]) if kind != {"type": "null"}]


@pytest.mark.parametrize("field", [{"use_beam_search": 0}, {"best_of": True}])
def test_what_only_equals_a_harmless_value_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        CompletionBody.model_validate({**BODIES[CompletionBody], **field}).requests(9, {})
