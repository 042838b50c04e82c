"""Test what a program gets from a running server: texts, streams, figures, and errors in words."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.messages import Status
from paceline import LLM, Error
from tests.app.store.relay import Relay
from tests.web.conftest import TEXT, Server
from tests.web.doubles import ScriptedVerifier
from tests.workers.cluster import wait_for


def test_answers_come_in_the_prompts_order(llm: LLM, verifier: ScriptedVerifier) -> None:
    encode, ids = verifier.deployment.tokenizer.encode, verifier.answer
    answers = [llm.generate(["a"], max_tokens=n)[0] for n in (1, 4)] + llm.generate(["b", "c", "d"], raw=True)
    assert [answer.tokens for answer in answers[:2]] == [tuple(ids[:1]), tuple(ids[:4])]
    assert [answer.text for answer in answers[2:]] == [TEXT] * 3
    prompts = [verifier.deployment.requests.snapshot(answer.result["id"]).record.prompt_ids for answer in answers]
    assert prompts[2:] == [tuple(encode(prompt)) for prompt in "bcd"]
    figures = answers[2].figures
    assert figures.prompt_tokens == 1 and figures.rounds > 1 and figures.accepted < figures.drafted
    assert figures.tokens_per_s is not None and figures.tokens_per_s > 0
    assert [answer.finish_reason for answer in answers] == ["length"] * 2 + ["stop"] * 3


def test_prompts_run_side_by_side(llm: LLM, verifier: ScriptedVerifier) -> None:
    verifier.going.clear()
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(llm.generate, ["a", "b", "c"])
        wait_for(lambda: len(verifier.seen) == 3, what="three requests at once")
        verifier.going.set()
        assert len(answers.result()) == 3


def test_a_prompt_is_a_text_or_a_conversation(llm: LLM) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    (alone,), (listed, text) = llm.generate(messages), llm.generate([messages, "Hello"])
    assert alone.figures.prompt_tokens == listed.figures.prompt_tokens != text.figures.prompt_tokens
    assert llm.generate([]) == []
    with pytest.raises(Error, match="a prompt is a text or a list of messages, and not a int"):
        llm.generate([7])  # type: ignore[list-item]
    with pytest.raises(Error, match="prompts: must be a text, or a list"):
        llm.generate(messages[0])  # type: ignore[arg-type]


def test_a_stream_yields_pieces_and_ends_with_the_answer(llm: LLM) -> None:
    stream = llm.stream("a")
    pieces = list(stream)
    assert len(pieces) > 3 and "".join(pieces) == TEXT
    assert stream.answer is not None and stream.answer.text == TEXT and list(stream) == []


def test_a_stream_that_is_left_cancels_its_request(llm: LLM, verifier: ScriptedVerifier) -> None:
    stream = llm.stream("a")
    next(stream)
    verifier.going.clear()
    stream.close()
    (request_id,) = verifier.seen
    assert verifier.deployment.requests.snapshot(request_id).status is Status.CANCELLED


def test_a_comparison_has_both_speeds_and_one_text(llm: LLM, verifier: ScriptedVerifier) -> None:
    found = llm.compare("a", temperature=0.5)
    records = [verifier.deployment.requests.snapshot(request_id).record for request_id in verifier.seen]
    assert [record.speculation.enabled for record in records] == [True, False]
    assert records[0].sampling == records[1].sampling, "with one seed"
    assert found.same and found.speedup is not None and "the same text" in str(found)
    verifier.answer[1] = verifier.answer[2]
    other = llm.generate(["a"])[0]
    assert "ANOTHER TEXT" in str(type(found)(found.speculating, other))
    assert "too short" in str(llm.compare("a", max_tokens=1))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"temprature": 1.0}, "temprature: this field does not exist"),
        ({"stop": {"a"}}, "a field cannot be written as JSON: Object of type set"),
    ],
)
def test_wrong_fields_are_named(llm: LLM, fields: dict[str, object], why: str) -> None:
    with pytest.raises(Error, match=why):
        llm.generate(["a"], **fields)  # type: ignore[arg-type]
    with pytest.raises(Error, match=why):
        next(llm.stream("a", **fields))  # type: ignore[arg-type]


def test_one_error_cancels_the_other_prompts(llm: LLM, verifier: ScriptedVerifier) -> None:
    verifier.going.clear()
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(llm.generate, ["a", "b", [{"role": "nobody", "content": ""}]])
        with pytest.raises(Error, match="messages.0.role"):
            answers.result()
    wait_for(lambda: not verifier.deployment.requests.active(), what="both others to be cancelled")


def test_a_failed_request_is_an_error(llm: LLM, verifier: ScriptedVerifier) -> None:
    verifier.fail = "the model cannot go on"
    with pytest.raises(Error, match="^the model cannot go on$"):
        llm.generate(["a"])


def test_a_broken_stream_is_taken_up_where_it_broke_off(server: Server, verifier: ScriptedVerifier) -> None:
    with Relay(server.port) as relay, LLM(url=f"http://127.0.0.1:{relay.port}") as llm:
        stream = llm.stream("a")
        text = next(stream)
        relay.cut()
        assert text + "".join(stream) == TEXT


def test_a_server_that_is_gone_amid_a_stream_is_an_error(
    server: Server, verifier: ScriptedVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Relay(server.port) as relay, LLM(url=f"http://127.0.0.1:{relay.port}") as llm:
        monkeypatch.setattr("paceline.server.SILENCE_S", 1.0)
        stream = llm.stream("a")
        next(stream)
        monkeypatch.setattr("paceline.server.RESUME_S", 0.5)
        relay.cut()
        relay.hold()
        with pytest.raises(Error, match=f"the stream from {llm.url} broke off, and could not be taken up again"):
            list(stream)


def test_a_full_server_is_waited_for(llm: LLM, verifier: ScriptedVerifier) -> None:
    most = verifier.deployment.settings.max_active_requests
    verifier.going.clear()
    threading.Timer(0.5, verifier.going.set).start()
    started_s = time.monotonic()
    assert len(llm.generate(["a"] * (most + 1), max_tokens=3)) == most + 1
    assert time.monotonic() - started_s >= 0.5


def test_what_runs_nowhere_is_refused(free_port: int, server: Server, verifier: ScriptedVerifier) -> None:
    with pytest.raises(Error, match=f"no server answers at http://127.0.0.1:{free_port}: "):
        LLM(url=f"http://127.0.0.1:{free_port}")
    with pytest.raises(Error, match="url: 'localhost' is no address"):
        LLM(url="localhost")
    with pytest.raises(Error, match="model, plan: the server at url has its own"):
        LLM(url=server.url, model="smollm2-135m", plan="off")
    with pytest.raises(Error, match="drafters: must be a list"):
        LLM(drafters="smol-general")
    with pytest.raises(Error, match="model: must not be empty"):
        LLM("")
    with pytest.raises(Error, match="is no server of Paceline's"):
        LLM(url=f"{server.url}/dashboard")
    llm = LLM(url=server.url)
    llm.close()
    with pytest.raises(Error, match="closed"):
        llm.generate(["a"])
