"""Check that calls of tools are valid, and the same whatever is drafted, streamed, or runs beside them."""

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import torch

from app.answer_form import Function, NamedFunction, NamedTool, Tool
from app.assembly.local import build_local, load_models
from app.config import Settings
from app.engine.cpu.load import load
from app.engine.text.answer_parts import calls_of
from app.engine.text.tokenizer import Tokenizer
from app.messages import FinishReason
from app.pipeline import LocalPipeline
from app.policy import Policy
from app.request import ChatMessage, GenerateRequest, SpeculationBounds
from app.store.protocol import Snapshot
from tests import fakes
from tests.fakes import Book, characters
from tests.models import model_dir
from web.openai.text_stream import GrowingText

pytestmark = [pytest.mark.model, pytest.mark.slow]
TEXT = {"type": "string", "maxLength": 12}
NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}


def of(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    rest = {} if required is None else {"required": required}
    return {"type": "object", "properties": properties, "additionalProperties": False, **rest}


SCHEMAS: dict[str, dict[str, Any] | None] = {
    "get_weather": of(["city"], city=TEXT, unit={"enum": ["celsius", "fahrenheit"]}),
    "time": None,
    "add": of(["a", "b"], a=NUMBER, b=NUMBER),
    "search_web": of(["query"], query=TEXT, most={"type": "integer", "minimum": 1, "maximum": 5}),
    "send_mail": of(["to", "text"], to={"type": "string", "pattern": "^[a-z]{2,8}@[a-z]{2,8}\\.com$"}, text=TEXT),
    "book_table": of(["people", "outside"], people=NUMBER, outside={"type": "boolean"}),
    "set_lights": of(["rooms"], rooms={"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2}),
    "move": of(["to"], to=of(["x", "y"], x=NUMBER, y=NUMBER)),
    "convert": of(["amount", "to"], amount={"type": "number", "minimum": 0, "maximum": 9}, to={"enum": ["€", "$"]}),
    "play": of(["what"], what={"anyOf": [TEXT, {"type": "null"}]}),
    "list_files": of([], path=TEXT, hidden={"type": "boolean"}),
    "read_file": of(["path"], path={"type": "string", "maxLength": 20}),
    "translate": of(["text", "to"], text=TEXT, to={"const": "fr"}),
    "draw": {**of(["shape"], shape={"$ref": "#/$defs/shape"}), "$defs": {"shape": {"enum": ["circle", "square"]}}},
    "tag": of(["tags"], tags={"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 3}),
    "roll": of(["dice"], dice={"type": "integer", "enum": [4, 6, 20]}),
    "remind": of(["at", "text"], at={"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"}, text=TEXT),
    "rate": of(["stars"], stars={"type": "integer", "minimum": 1, "maximum": 5}),
    "order": of(["items"], items={"type": "array", "items": of(["id"], id=NUMBER), "minItems": 1, "maxItems": 2}),
    "dns.look-up_2": of(["host"], host={"type": "string", "pattern": "^[a-z]{1,9}$"}),
}
TOOLS = [Tool(function=Function(name=name, description=name, parameters=one)) for name, one in SCHEMAS.items()]
QUESTIONS = ("How is the weather in Zürich?", "Do it now.", "Add 5 and 6, then send it to Bob.", "Play something.")


@pytest.fixture(scope="module")
def drafting() -> Iterator[LocalPipeline]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield build_local(settings := Settings(model=str(model_dir()), kv_bytes=800 * 2**20), load_models(settings))
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def misled(drafting: LocalPipeline) -> LocalPipeline:
    """Return a pipeline whose only drafter guesses at random, and whose guesses are all verified."""
    model, tokenizer = load(model_dir()), Tokenizer(model_dir())
    drafter = characters(Book(), tokenizer.vocab_size)["random"]
    policy = Policy(max_draft_tokens=4, min_draft_tokens=2)
    return fakes.pipeline(
        fakes.runner(model), [drafter], vocab_size=tokenizer.vocab_size, policy=policy, tokenizer=tokenizer
    )


def asked(number: int) -> GenerateRequest:
    """Ask greedily or by sampling, of one to three tools: for any call, for a named one, or go on with a begun one."""
    draw = random.Random(number)
    tools = [TOOLS[number % len(TOOLS)], *draw.sample(TOOLS, draw.randrange(3))]
    tools = list({one.function.name: one for one in tools}.values())
    messages = [ChatMessage(role="user", content=draw.choice(QUESTIONS))]
    rest: dict[str, Any] = {
        "tool_choice": draw.choice(["required", NamedTool(function=NamedFunction(name=tools[0].function.name))])
    }
    if number % 2:
        begun = draw.choice(
            ["<tool_call>", f'<tool_call>[{{"name": "{tools[0].function.name[:2]}', "Sure. <tool_call>["]
        )
        messages.append(ChatMessage(role="assistant", content=begun))
        rest = {"continue_final_message": True}
    return GenerateRequest(
        messages=tuple(messages), tools=tuple(tools), max_tokens=120, temperature=draw.choice([0.0, 0.0, 0.7, 1.0]),
        seed=number, parallel_tool_calls=number % 5 == 4, **rest,
    )  # fmt: skip


def answers(pipeline: LocalPipeline, requests: list[GenerateRequest], at_once: int, **changes: Any) -> list[Snapshot]:
    found = []
    for start in range(0, len(requests), at_once):
        some = [one.model_copy(update=changes) for one in requests[start : start + at_once]]
        records = [pipeline.submit(one, Settings()) for one in some]
        fakes.finish(pipeline)
        found += [pipeline.store.snapshot(one.id) for one in records]
    return found


def check(tokenizer: Tokenizer, request: GenerateRequest, found: Snapshot) -> bool:
    """Return whether the answer ended by itself; then its calls are valid. Streamed, it is the same."""
    whole = GrowingText(tokenizer, found.record).take(found.tokens, (), is_end=True)
    growing, draw = GrowingText(tokenizer, found.record), random.Random(1)
    parts, start = [], 0
    while start < len(found.tokens):
        end = start + draw.randrange(1, 5)
        parts.append(growing.take(found.tokens[start:end], (), is_end=end >= len(found.tokens)))
        start = end
    assert "".join(one.text for one in parts) == whole.text
    calls = calls_of(whole.calls)
    assert calls_of([call for one in parts for call in one.calls]) == calls
    if found.finish_reason is FinishReason.LENGTH:
        return False
    assert calls and (request.parallel_tool_calls or len(calls) == 1), tokenizer.decode(found.tokens)
    functions = {tool.function.name: tool.function for tool in request.tools}
    for call in calls:
        jsonschema_rs.validate(functions[call.function.name].arguments, json.loads(call.function.arguments))
    return True


@pytest.mark.parametrize("count", [4, pytest.param(200, marks=pytest.mark.extended)])
def test_calls_are_valid_and_the_same_whatever_is_drafted(
    drafting: LocalPipeline, misled: LocalPipeline, count: int
) -> None:
    requests = [asked(number) for number in range(count)]
    off = answers(drafting, requests, 1, speculation=SpeculationBounds(enabled=False))
    on, wrong = answers(drafting, requests, 8), answers(misled, requests, 8)
    for request, plain, drafted, other in zip(requests, off, on, wrong, strict=True):
        assert plain.tokens == drafted.tokens == other.tokens, request
    ended = [check(misled.tokenizer, *pair) for pair in zip(requests, off, strict=True)]
    assert sum(ended) >= 0.8 * count, "most answers end before their limit"
    assert sum(one.stats.accepted for one in on) > 0 and sum(one.stats.drafted for one in wrong) > count
