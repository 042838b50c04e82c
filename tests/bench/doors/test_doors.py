"""Test what `./paceline bench doors` makes of cases, answers and logs."""

import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.doors.cases import CANARY, ROUTES, VALUES, call, groups
from bench.doors.hooks import FEW, before_call, sound_input_is_taken
from bench.doors.run import judged_logs, sizes, written
from bench.doors.tasks import damaged
from bench.doors.wire import CLOSED, SILENT, judged, status_of

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\nTypeError: no\n'


def test_each_field_of_each_route_gets_each_value() -> None:
    names = [name for name, _ in groups("m", {})["fields"]]
    for path, (read, _) in ROUTES.items():
        for field in read.model_fields:
            assert sum(name.startswith(f"{path}: {field} = ") for name in names) == len(VALUES)


def test_every_whole_request_has_the_headers_and_its_length() -> None:
    head, _, body = call("POST", "/a", b"{}", {"X-Key": "k"}).partition(b"\r\n\r\n")
    assert body == b"{}"
    assert {b"POST /a HTTP/1.1", b"X-Key: k", b"Content-Length: 2", b"Connection: close"} <= {*head.split(b"\r\n")}


@pytest.mark.parametrize(
    ("answer", "status"),
    [(b"HTTP/1.1 404 NOT FOUND\r\n\r\n", 404), (b"", CLOSED), (b"noise", CLOSED), (None, SILENT)],
)
def test_an_answer_without_a_status_is_not_silence(answer: bytes | None, status: int) -> None:
    assert status_of(answer) == status


def test_a_5xx_silence_and_a_second_answer_break_a_promise() -> None:
    ok, bad = b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 501 No\r\n\r\n"
    answers = [("fine", ok), ("bad", bad), ("known", bad), ("silent", None), ("twice", ok + ok), ("closed", b"")]
    statuses, broken = judged(answers, {("known", 501)})
    assert statuses == Counter({200: 2, 501: 2, SILENT: 1, CLOSED: 1})
    assert [line.split(":")[0] for line in broken] == ["bad", "silent", "twice"]


def test_logs_are_read_from_where_they_ended(tmp_path: Path) -> None:
    log = tmp_path / "web-1.log"
    log.write_text(f"before {CANARY}\n")
    since = sizes(tmp_path)
    with log.open("a") as file:
        file.write(TRACEBACK)
    assert written(tmp_path, since) == TRACEBACK
    log.write_text("new\n")  # moved aside and begun anew
    assert written(tmp_path, since) == "new\n"


def test_a_traceback_and_a_prompt_in_a_log_are_found() -> None:
    count, found = judged_logs(f"fine\n{TRACEBACK}{TRACEBACK}x {CANARY}\n")
    assert count == 2
    assert found[0] == "2 tracebacks in the logs: TypeError: no"
    assert CANARY in found[1]
    assert judged_logs("fine\n") == (0, [])


@pytest.mark.parametrize(("is_sound", "few"), [(True, FEW), (False, 10**9)])
def test_only_a_sound_call_of_schemathesis_is_shortened(is_sound: bool, few: int) -> None:
    mode = SimpleNamespace(is_positive=is_sound)
    case: Any = SimpleNamespace(meta=SimpleNamespace(generation=SimpleNamespace(mode=mode)), body={"max_tokens": 10**9})
    before_call(None, case, {})
    assert case.body == {"max_tokens": few}


@pytest.mark.parametrize(
    ("text", "is_excused"),
    [("top_p: Input should be greater than 0", False), ("token id 9 is outside the vocabulary of 5 tokens", True)],
)
def test_only_a_refusal_that_no_schema_can_say_is_excused(text: str, is_excused: bool) -> None:
    response: Any = SimpleNamespace(status_code=400, text=text)
    case: Any = SimpleNamespace(
        meta=SimpleNamespace(generation=SimpleNamespace(mode=SimpleNamespace(is_positive=True)))
    )
    with nullcontext() if is_excused else pytest.raises(AssertionError, match="openapi.json allows"):
        sound_input_is_taken(None, response, case)


def test_a_damaged_envelope_that_is_json_names_its_queue() -> None:
    found = [json.loads(text) for text in damaged("q", "/proof") if text.startswith('{"body": "')]
    assert len(found) > 50
    queues = [one["properties"]["delivery_info"]["routing_key"] for one in found if one.get("properties")]
    assert set(queues) == {"q"}
