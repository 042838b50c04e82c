"""Test event streams: committed text in whole characters, from any offset on."""

import http.client
import json
import threading
import time
from contextlib import closing

import pytest
from flask.testing import FlaskClient

import web.api.sse
from app.engine.text.tokenizer import Tokenizer
from tests.web.conftest import TEXT, Server
from tests.web.doubles import WRONG, ScriptedVerifier
from tests.web.events import ServerEvent, parse, parse_text
from web.factory import create_app
from workers.deployment import Deployment


def streamed(client: FlaskClient, url: str, **headers: str) -> list[ServerEvent]:
    response = client.get(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    assert response.status_code == 200
    return parse_text(response.text)


def text_of(events: list[ServerEvent]) -> str:
    return "".join(event.data["text"] for event in events if event.kind == "tokens")


def test_the_stream_is_the_text_then_the_result(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    response = client.post("/api/generate", json={"prompt": "Hi", "stream": True, "max_tokens": 500})
    assert (response.status_code, response.mimetype) == (200, "text/event-stream")
    events = parse_text(response.text)
    *tokens, end = events
    assert {event.kind for event in tokens} == {"tokens"} and end.kind == "end"
    assert text_of(events) == TEXT == end.data["text"]
    assert [token for event in tokens for token in event.data["tokens"]] == verifier.answer
    assert end.data == client.get(response.headers["Location"]).json


def test_pieces_match_tokens_and_proposers(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    response = client.post("/api/generate", json={"prompt": "Hi", "stream": True})
    for event in parse_text(response.text)[:-1]:
        data = event.data
        assert len(data["pieces"]) == len(data["tokens"]) == len(data["proposers"])
        assert "".join(data["pieces"]) == data["text"] and "\ufffd" not in data["text"]
        assert event.last_id == str(data["offset"] + len(data["tokens"]))
        assert data["stats"]["rounds"] > 0 and data["id"] == response.headers["X-Request-Id"]


def test_a_stream_resumes_at_any_offset_with_the_same_text(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    result = client.post("/api/generate", json={"prompt": "Hi", "max_tokens": 500}).json
    url = f"/api/requests/{result['id']}/stream"
    pieces = [piece for event in streamed(client, url)[:-1] for piece in event.data["pieces"]]
    for offset in range(len(pieces) + 1):
        events = streamed(client, f"{url}?offset={offset}")
        assert text_of(events) == "".join(pieces[offset:])
        assert events[-1].data == result
        assert [token for event in events[:-1] for token in event.data["tokens"]] == result["token_ids"][offset:]


def test_rejected_guesses_come_on_request_with_their_text(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    body = {"prompt": "Hi", "stream": True, "max_tokens": 9}
    response = client.post("/api/generate", json=body)
    assert not any("rejected" in event.data for event in parse_text(response.text))
    response = client.post("/api/generate", json={**body, "speculation": {"rejected": True}})
    first, *_ = parse_text(response.text)
    (guess,) = first.data["rejected"]
    assert (guess["place"], guess["drafter"]) == (2, "smol-general")
    assert guess["tokens"] == [WRONG, first.data["tokens"][2]] and guess["text"] == " the" + first.data["pieces"][2]
    assert text_of(parse_text(response.text)) == TEXT[: len(text_of(parse_text(response.text)))]
    cut, *_ = streamed(client, f"{response.headers['Location']}/stream?offset=1")
    assert cut.data["rejected"] == [{**guess, "place": 1}]


def test_the_last_event_id_counts_more_than_the_url(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    result = client.post("/api/generate", json={"prompt": "Hi"}).json
    events = streamed(client, f"/api/requests/{result['id']}/stream?offset=0", Last_Event_ID="6")
    assert events[0].data["offset"] == 6


@pytest.mark.parametrize("offset", ["-1", "x", "1.5", "²", "99999999999", "1000"])
def test_an_offset_outside_the_text_is_refused(offset: str, client: FlaskClient, verifier: ScriptedVerifier) -> None:
    result = client.post("/api/generate", json={"prompt": "Hi"}).json
    response = client.get(f"/api/requests/{result['id']}/stream?offset={offset}")
    assert response.status_code == 400
    assert response.json["error"]["field"] == "offset"


def test_a_stream_resumes_beyond_what_the_store_kept(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    """After a power loss the store may hold less than was streamed; the same tokens come again, once."""
    whole = client.post("/api/generate", json={"prompt": "Hi", "max_tokens": 500}).json
    pieces = [
        piece
        for event in streamed(client, f"/api/requests/{whole['id']}/stream")[:-1]
        for piece in event.data["pieces"]
    ]
    within = 1 + pieces.index("")  # a character whose first part the client has, and shows with the next token
    for offset in (1, 5, within, len(pieces)):
        verifier.going.clear()
        answer = client.post("/api/generate", json={"prompt": "Hi", "max_tokens": 500, "wait": False}).json
        threading.Timer(0.2, verifier.going.set).start()
        events = streamed(client, f"{answer['stream_url']}?offset={offset}")
        assert text_of(events) == "".join(pieces[offset:])
        assert [token for event in events[:-1] for token in event.data["tokens"]] == whole["token_ids"][offset:]
    running = client.post("/api/generate", json={"prompt": "Hi", "max_tokens": 7, "wait": False}).json
    assert client.get(f"{running['stream_url']}?offset=8").status_code == 400, "it will never have so many"


def test_bad_input_is_refused_before_the_stream_starts(client: FlaskClient) -> None:
    assert client.post("/api/generate", json={"prompt": "", "stream": True}).status_code == 400


def test_a_cancelled_answer_shows_its_broken_last_character(
    client: FlaskClient, deployment: Deployment, tokenizer: Tokenizer
) -> None:
    broken = tokenizer.encode("ab 👩‍🚀")[:3]
    with ScriptedVerifier(deployment, [*broken, *broken]) as verifier:
        verifier.pause_s = 0.3
        response = client.post("/api/generate", json={"prompt": "Hi", "wait": False}).json
        while not client.get(response["url"]).json["token_ids"]:
            time.sleep(0.01)
        result = client.delete(response["url"]).json
    events = streamed(client, response["stream_url"])
    assert result["text"].endswith("\ufffd")
    assert text_of(events) == result["text"]
    assert [event.kind for event in events] == ["tokens", "tokens", "end"]


def test_a_failed_request_ends_its_stream_with_its_reason(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    verifier.fail = "it took three verifiers down"
    events = parse_text(client.post("/api/generate", json={"prompt": "Hi", "stream": True}).text)
    assert (events[-1].kind, events[-1].data["status"], events[-1].data["error"]) == (
        "end",
        "failed",
        verifier.fail,
    )


def test_a_silent_stream_has_heartbeats(
    client: FlaskClient, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web.api.sse, "HEARTBEAT_S", 0.5)
    answer = client.post("/api/generate", json={"prompt": "Hi", "wait": False}).json
    threading.Timer(2.5, lambda: client.delete(answer["url"])).start()
    text = client.get(answer["stream_url"]).text
    assert text.count(": still here\n\n") >= 1
    assert [event.kind for event in parse_text(text)] == ["end"]


def test_a_stopping_server_ends_streams_and_keeps_requests(deployment: Deployment) -> None:
    stopping = threading.Event()
    client = create_app(deployment, stopping).test_client()
    threading.Timer(0.2, stopping.set).start()
    response = client.post("/api/generate", json={"prompt": "Hi", "stream": True})
    assert parse_text(response.text) == []
    assert client.get(response.headers["Location"]).json["status"] == "active"


def test_tokens_arrive_one_by_one_over_a_socket(server: Server, verifier: ScriptedVerifier) -> None:
    verifier.going.clear()
    with closing(http.client.HTTPConnection(server.host, server.port, timeout=10)) as connection:
        connection.request("POST", "/api/generate", json.dumps({"prompt": "Hi", "stream": True}), _JSON)
        response = connection.getresponse()  # the headers come before any token
        request_id = response.headers["X-Request-Id"]
        assert response.headers["X-Accel-Buffering"] == "no"
        events = parse(line.decode().removesuffix("\n") for line in response)
        verifier.pause_s = 0.2
        verifier.going.set()
        first = next(events)
        assert first.data["offset"] == 0
        assert len(verifier.deployment.requests.snapshot(request_id).tokens) < len(verifier.answer)
        verifier.pause_s = 0.001
        rest = list(events)
    assert text_of([first, *rest]) == TEXT
    assert len(rest) > 5


def test_a_disconnected_reader_can_resume(server: Server, verifier: ScriptedVerifier) -> None:
    verifier.pause_s = 0.05
    with closing(http.client.HTTPConnection(server.host, server.port, timeout=10)) as connection:
        connection.request("POST", "/api/generate", json.dumps({"prompt": "Hi", "stream": True}), _JSON)
        response = connection.getresponse()
        first = next(parse(line.decode().removesuffix("\n") for line in response))
        response.close()
    with closing(http.client.HTTPConnection(server.host, server.port, timeout=10)) as connection:
        connection.request("GET", f"/api/requests/{first.data['id']}/stream", headers={"Last-Event-ID": first.last_id})
        rest = parse_text(connection.getresponse().read().decode())
    assert text_of([first, *rest]) == TEXT


def test_a_disconnected_waiting_caller_cancels_its_request(server: Server, deployment: Deployment) -> None:
    with closing(http.client.HTTPConnection(server.host, server.port, timeout=10)) as connection:
        connection.request("POST", "/api/generate", json.dumps({"prompt": "Hi"}), _JSON)
        while not deployment.requests.active():
            time.sleep(0.01)
    deadline = time.monotonic() + 10.0  # no verifier is here: only the cancellation ends it
    while deployment.requests.active():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_many_streams_at_once_are_each_their_own(server: Server, verifier: ScriptedVerifier) -> None:
    texts: list[str] = []

    def stream() -> None:
        with closing(http.client.HTTPConnection(server.host, server.port, timeout=20)) as connection:
            connection.request("POST", "/api/generate", json.dumps({"prompt": "Hi", "stream": True}), _JSON)
            texts.append(text_of(parse_text(connection.getresponse().read().decode())))

    threads = [threading.Thread(target=stream) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [TEXT] * 8


_JSON = {"Content-Type": "application/json"}
