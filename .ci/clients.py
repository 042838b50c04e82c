"""Use a running instance as its clients do: SDKs and agents, unchanged, with tools, forms and streams.

    python .ci/clients.py http://127.0.0.1:8000

The checks compare whole answers with streamed ones, and OpenAI's with those without drafts.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import anthropic
import instructor
import litellm
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

URL = sys.argv[1].rstrip("/")
V1 = f"{URL}/v1"
CLIENT = OpenAI(base_url=V1, api_key="none", max_retries=0)
MODEL = CLIENT.models.list().data[0].id
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": SCHEMA}}]
FIXED: dict[str, Any] = {"temperature": 0, "max_tokens": 100}
OFF = {"speculation": False}


class Person(BaseModel):
    name: str
    age: int


def openai_tools() -> None:
    def ask(**rest: Any) -> Any:
        return CLIENT.chat.completions.create(
            model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice="required", **FIXED, **rest
        )

    message = ask().choices[0].message
    (call, *_) = message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments).keys() == {"city"}
    assert ask(extra_body=OFF).choices[0].message.tool_calls[0].function == call.function
    deltas = [one for chunk in ask(stream=True) for one in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(one.function.arguments for one in deltas if one.index == 0) == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    history = [*QUESTION, message.model_dump(exclude_none=True), result]
    assert CLIENT.chat.completions.create(model=MODEL, messages=history, tools=TOOLS, **FIXED).choices[0].message
    with CLIENT.chat.completions.stream(
        model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice="required", **FIXED
    ) as stream:
        assert stream.get_final_completion().choices[0].message.tool_calls


def openai_responses() -> None:
    fixed = {"model": MODEL, "temperature": 0, "max_output_tokens": 60}
    whole = CLIENT.responses.create(input="What is the capital of France?", **fixed)
    assert whole.output_text
    assert CLIENT.responses.create(input="What is the capital of France?", **fixed, extra_body=OFF).output_text == (
        whole.output_text
    )
    events = CLIENT.responses.create(input="What is the capital of France?", stream=True, **fixed)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert isinstance(CLIENT.responses.parse(input="Anna is 31.", text_format=Person, **fixed).output_parsed, Person)


def openai_agents() -> None:
    set_tracing_disabled(True)
    client, called = AsyncOpenAI(base_url=V1, api_key="none"), []

    @function_tool
    def get_weather(city: str) -> str:
        """Return the weather of a city."""
        called.append(city)
        return "sunny"

    settings = ModelSettings(tool_choice="required", temperature=0, max_tokens=80)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(model=MODEL, openai_client=client)
        agent = Agent(name="a", instructions="Use tools.", model=model, tools=[get_weather], model_settings=settings)
        assert Runner.run_sync(agent, "What is the weather in Paris?", max_turns=4).final_output
    assert len(called) >= 2

    async def streamed() -> Any:
        run = Runner.run_streamed(agent, "What is the weather in Rome?", max_turns=4)
        async for _ in run.stream_events():
            pass
        return run.final_output

    assert asyncio.run(streamed()) and len(called) >= 3


def anthropic_messages() -> None:
    client = anthropic.Anthropic(base_url=URL, api_key="none")
    tools = [{"name": "get_weather", "description": "The weather", "input_schema": SCHEMA}]
    fixed = {"model": MODEL, "max_tokens": 100, "extra_body": {"temperature": 0}}
    wanted = {"messages": QUESTION, "tools": tools, "tool_choice": {"type": "any"}, **fixed}
    whole = client.messages.create(**wanted)
    assert whole.stop_reason == "tool_use" and whole.content[-1].input.keys() == {"city"}
    with client.messages.stream(**wanted) as stream:
        assert stream.get_final_message().content[-1].input == whole.content[-1].input
    result = {"type": "tool_result", "tool_use_id": whole.content[-1].id, "content": "sunny"}
    turns = [{"role": "assistant", "content": [one.model_dump() for one in whole.content]}]
    history = [*QUESTION, *turns, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=history, tools=tools, **fixed).content
    assert client.messages.count_tokens(model=MODEL, messages=QUESTION, tools=tools).input_tokens > 50


def langchain() -> None:
    @tool
    def multiply(a: int, b: int) -> int:
        """Multiply two numbers."""
        return a * b

    chat = ChatOpenAI(base_url=V1, api_key="none", model=MODEL, **FIXED)
    bound = chat.bind_tools([multiply], tool_choice="any")
    whole = bound.invoke("What is 6 times 7?")
    streamed = None
    for chunk in bound.stream("What is 6 times 7?"):
        streamed = chunk if streamed is None else streamed + chunk
    assert [one["args"] for one in streamed.tool_calls] == [one["args"] for one in whole.tool_calls] != []
    for method in ("function_calling", "json_schema"):
        assert isinstance(chat.with_structured_output(Person, method=method).invoke("Anna is 31."), Person)


def others() -> None:
    anna = [{"role": "user", "content": "Anna is 31."}]
    wrapped = instructor.from_openai(CLIENT)
    said = wrapped.chat.completions.create(model=MODEL, response_model=Person, messages=anna, max_retries=0, **FIXED)
    assert isinstance(said, Person)
    wanted = {"messages": QUESTION, "tools": TOOLS, "tool_choice": "required", **FIXED}
    found = litellm.completion(model=f"openai/{MODEL}", api_base=V1, api_key="none", **wanted)
    assert found.choices[0].message.tool_calls[0].function.name == "get_weather"


def main() -> int:
    failed = 0
    checks: tuple[Callable[[], None], ...] = (
        openai_tools, openai_responses, openai_agents, anthropic_messages, langchain, others,
    )  # fmt: skip
    for check in checks:
        try:
            check()
            print(f"ok    {check.__name__}", flush=True)
        except Exception as error:  # the others are tried all the same
            failed += 1
            print(f"FAIL  {check.__name__}: {type(error).__name__}: {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
