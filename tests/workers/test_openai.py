"""Test OpenAI's own client, sync and async, against a real deployment: the same texts as the native API."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from app.request import GenerateRequest
from tests.workers.cluster import Cluster, wait_for
from tests.workers.conftest import Alone
from workers.deployment import Deployment

MODEL = "target"  # the folder's name
ASK: list[Any] = [{"role": "user", "content": "Tell me"}]
OFF = {"speculation": False}


@pytest.fixture
def client(cluster: Cluster) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{cluster.url}/v1", api_key="-", max_retries=0, timeout=120) as made:
        yield made


def text_of(answer: ChatCompletion, index: int = 0) -> str:
    return answer.choices[index].message.content or ""


def test_a_chat_is_the_native_apis_text(client: OpenAI, cluster: Cluster) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=40, seed=3, temperature=0.8)
    native = cluster.post({"messages": ASK, "max_tokens": 40, "seed": 3, "temperature": 0.8})
    assert text_of(answer) == native["text"] and answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == native["usage"]["prompt_tokens"]
    assert answer.usage.completion_tokens == 40
    speculation = cluster.get(f"/api/requests/{answer.id.removeprefix('chatcmpl-')}")["speculation"]
    details = answer.usage.completion_tokens_details
    assert details is not None and details.accepted_prediction_tokens == speculation["accepted"]
    assert details.rejected_prediction_tokens == speculation["drafted"] - speculation["accepted"]


def test_speculation_is_a_switch_that_changes_no_text(client: OpenAI) -> None:
    def complete(**rest: Any) -> ChatCompletion:
        return client.chat.completions.create(
            model=MODEL, messages=ASK, max_completion_tokens=50, seed=4, logprobs=True, top_logprobs=3, **rest
        )

    on, off = complete(), complete(extra_body=OFF)
    assert text_of(on) == text_of(off)
    assert on.choices[0].logprobs == off.choices[0].logprobs
    assert off.usage and off.usage.completion_tokens_details
    assert off.usage.completion_tokens_details.accepted_prediction_tokens == 0
    assert off.usage.completion_tokens_details.rejected_prediction_tokens == 0


def test_a_stream_has_the_same_text_as_the_whole_answer(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 60, "seed": 5, "n": 2}
    ask |= {"logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**ask)
    texts, tokens, ends, usage = ["", ""], [[], []], {}, None
    with client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                tokens[choice.index] += choice.logprobs.content if choice.logprobs else []
                ends[choice.index] = choice.finish_reason
    assert texts == [text_of(whole, 0), text_of(whole, 1)] and texts[0] != texts[1]
    assert ends == {0: "length", 1: "length"}
    assert tokens == [choice.logprobs.content for choice in whole.choices if choice.logprobs]
    assert usage is not None and whole.usage is not None and usage.completion_tokens == 120
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_stop_strings_end_the_request_itself(client: OpenAI, cluster: Cluster) -> None:
    """Stop at every place of a text; the verifier generates no more than it must."""
    free = cluster.post({"messages": ASK, "max_tokens": 60})
    ids, text = free["token_ids"], free["text"]
    for start in range(3, 40, 9):
        stop = text[start : start + 2]
        if "\ufffd" in stop:
            continue
        ask: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 60, "temperature": 0, "stop": [stop]}
        answer = client.chat.completions.create(**ask)
        assert text_of(answer) == text[: text.index(stop)] and answer.choices[0].finish_reason == "stop"
        native = cluster.get(f"/api/requests/{answer.id.removeprefix('chatcmpl-')}")
        assert native["token_ids"] == ids[: len(native["token_ids"])] and native["text"] == text_of(answer)
        with client.chat.completions.create(**ask, stream=True) as stream:
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert streamed == text_of(answer)
        assert answer.usage and answer.usage.completion_tokens == len(native["token_ids"]) < 60


def test_json_is_the_same_with_speculation_and_after_the_verifier_was_killed(
    client: OpenAI, cluster: Cluster, deployment: Deployment
) -> None:
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "minLength": 25, "maxLength": 30}, "ok": {"type": "boolean"}},
        "required": ["text", "ok"],
        "additionalProperties": False,
    }
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    spaces = {str(id_): -100 for id_ in deployment.tokenizer.encode(" \n\r\t")}  # a random model would say nothing else
    ask: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 200, "seed": 6, "logit_bias": spaces}
    plain = client.chat.completions.create(**ask, response_format=asked, extra_body=OFF)
    assert plain.choices[0].finish_reason == "stop"
    assert set(json.loads(text_of(plain))) == {"text", "ok"}
    text, killed = "", 0
    with client.chat.completions.create(**ask, response_format=asked, stream=True) as stream:
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if len(text) > 12 and not killed:
                killed = cluster.signal("verify", signal.SIGKILL)
    assert killed and text == text_of(plain)
    cluster.await_restart("verify", killed)


def test_a_completion_continues_its_prompt(client: OpenAI, alone: Alone, deployment: Deployment) -> None:
    answer = client.completions.create(model=MODEL, prompt="Once", max_tokens=20, temperature=0, logprobs=2)
    expected = alone(GenerateRequest(prompt="Once", raw=True, max_tokens=20))
    choice = answer.choices[0]
    assert choice.text == deployment.tokenizer.decode(expected)
    assert choice.logprobs is not None and choice.logprobs.top_logprobs is not None
    assert len(choice.logprobs.tokens or []) == len(choice.logprobs.top_logprobs)
    assert all(len(top) >= 2 for top in choice.logprobs.top_logprobs)
    with client.completions.create(
        model=MODEL, prompt="Once", max_tokens=20, temperature=0, logprobs=2, stream=True
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    assert [token for part in parts if part for token in part.tokens or []] == choice.logprobs.tokens
    assert [at for part in parts if part for at in part.text_offset or []] == choice.logprobs.text_offset


def test_the_async_client_runs_many_at_once(cluster: Cluster, deployment: Deployment) -> None:
    async def ask(client: AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=30, seed=seed, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def main() -> list[str]:
        async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="-", max_retries=0, timeout=120) as client:
            assert [model.id async for model in client.models.list()] == [MODEL]
            return await asyncio.gather(*(ask(client, seed) for seed in range(8)))

    texts = asyncio.run(main())
    assert len(set(texts)) == 8
    assert texts[3] == cluster.post({"messages": ASK, "max_tokens": 30, "seed": 3, "temperature": 1.0})["text"]


def test_the_clients_errors_are_its_own(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=100_000)
    assert (bad.value.param, bad.value.code) == ("max_tokens", "invalid_value")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=ASK)
    assert missing.value.code == "model_not_found"


def test_a_client_that_leaves_a_stream_stops_the_verifier(client: OpenAI, deployment: Deployment) -> None:
    with client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=4000, stream=True) as stream:
        chunks = [chunk for chunk, _ in zip(stream, range(5), strict=False)]
    left_s = time.monotonic()
    request_id = chunks[0].id.removeprefix("chatcmpl-")
    wait_for(lambda: deployment.requests.ended(request_id), limit_s=10.0, what="its end")
    took_s = time.monotonic() - left_s
    end = deployment.requests.snapshot(request_id)
    assert end.status.value == "cancelled" and len(end.tokens) < 2000
    print(f"cancelled {1e3 * took_s:.0f} ms after the client left, {len(end.tokens)} tokens")
