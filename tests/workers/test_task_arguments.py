"""Test any arguments of `paceline.generate` from another service: admitted, or refused in a sentence."""

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import InvalidRequest
from app.request import GenerateRequest
from workers.deployment import Deployment
from workers.tasks.generate import request_of
from workers.tasks.results import TaskResults
from workers.tasks.waiting_tasks import WaitingTasks

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NEAR = {  # right often enough that what lies behind the first check is met, too
    "prompt": st.text(st.characters(), min_size=1, max_size=40),
    "max_tokens": st.integers(-1, 99),
    "temperature": st.floats(0.0, 12.0),
    "stop": st.lists(st.text(st.characters(), max_size=5), max_size=3),
    "logit_bias": st.dictionaries(st.integers(-2, 400).map(str), st.floats(-120.0, 120.0), max_size=3),
    "allowed_token_ids": st.lists(st.integers(-2, 400), max_size=4),
    "response_format": st.fixed_dictionaries({"type": st.sampled_from(["json_object", "json_schema"]), "schema": JSON}),
    "speculation": st.booleans() | st.fixed_dictionaries({"drafters": st.lists(st.text(max_size=5), max_size=2)}),
}
FIELDS = st.sampled_from([*GenerateRequest.model_fields, "self", "task_id", "wait"])


@st.composite
def arguments(draw: st.DrawFn) -> tuple[list[Any], dict[str, Any]]:
    names = draw(st.lists(FIELDS, max_size=4, unique=True))
    kwargs = {name: draw(NEAR.get(name, JSON) if draw(st.booleans()) else JSON) for name in names}
    if draw(st.booleans()):
        kwargs["prompt"] = draw(NEAR["prompt"])
    return draw(st.lists(JSON, max_size=2)) if not draw(st.integers(0, 3)) else [], kwargs


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=arguments())
def test_odd_arguments_are_admitted_or_refused_in_a_sentence(
    lone_deployment: Deployment, sent: tuple[list[Any], dict[str, Any]]
) -> None:
    args, kwargs = sent
    try:
        request = request_of(tuple(args), kwargs)
        assert WaitingTasks(lone_deployment, TaskResults(lone_deployment.celery)).admit(
            request, uuid.uuid4().hex, {"id": "x"}
        ) in (
            True,
            False,
        )
    except (ValueError, InvalidRequest) as error:
        assert str(error) and "\n" not in str(error).strip()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"prompt": "a", "max_token": 5}, "max_token: this field does not exist"),
        ({}, "give either prompt, messages or prompt_ids"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"prompt": "a", "top_k": False}, "top_k: must not be true or false where a number belongs"),
        ({"prompt": "a" * (2**20 + 1)}, "prompt: String should have at most 1048576 characters"),
    ],
)
def test_errors_are_worded_by_paceline(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        request_of((), kwargs)
    assert str(error.value) == message
