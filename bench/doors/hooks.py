"""Hook into schemathesis: calls ask for few tokens, and input that openapi.json allows is taken."""

import re
from typing import Any

import schemathesis

FEW = 4
# What the model, the instance or two fields together decide; no schema can say it.
UNSAID = re.compile(
    "must have at most .* tokens|must have at least one token|is outside the vocabulary|does not exist here"
    r"|a call must ask for|requires logprobs|give either response_format|\"(field|param)\": ?\"response_format\""
)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Bound the answer's length."""
    if _is_sound(case) and isinstance(case.body, dict):
        for name in {"max_tokens"} | case.body.keys() & {"max_completion_tokens"}:
            case.body[name] = min(case.body.get(name) or FEW, FEW)


@schemathesis.check
def sound_input_is_taken(context: Any, response: Any, case: Any) -> None:
    """Fail where a document's reader could not know that the input is refused."""
    if _is_sound(case) and response.status_code == 400 and not UNSAID.search(response.text):
        raise AssertionError(f"openapi.json allows what is refused: {response.text}")


def _is_sound(case: Any) -> bool:
    return case.meta is not None and case.meta.generation.mode.is_positive
