"""Test the clients of `bench load meanwhile` that wait for one answer: broken is lost, refused is not."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from app.messages import FinishReason, Result, SpeculationReport, Status, Timing, Usage
from app.request import GenerateRequest
from bench.chaos.clients import ClientCounts
from bench.load.meanwhile import Waiting

TOKENS = (5, 6, 7)
COUNTED = ("right", "wrong", "failed", "lost", "refused")
Answer = Callable[[BaseHTTPRequestHandler], None]


def right(handler: BaseHTTPRequestHandler) -> None:
    answered(handler, TOKENS)


def wrong(handler: BaseHTTPRequestHandler) -> None:
    answered(handler, (5, 6, 8))


def answered(handler: BaseHTTPRequestHandler, tokens: tuple[int, ...]) -> None:
    speculation = SpeculationReport(rounds=3, drafted=0, accepted=0, mean_accepted_length=1.0, by_drafter={})
    result = Result(
        id="r",
        status=Status.DONE,
        text="abc",
        token_ids=tokens,
        finish_reason=FinishReason.LENGTH,
        usage=Usage(prompt_tokens=1, completion_tokens=3),
        timing=Timing(ttft_s=0.1, total_s=0.2),
        speculation=speculation,
    )
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(result.model_dump_json().encode())


def accepted(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(202)
    handler.end_headers()


def full(handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(503)


def dead(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True  # without a word


def torn(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"id":')


@pytest.mark.parametrize(
    ("answer", "counted"),
    [(right, "right"), (wrong, "wrong"), (accepted, "lost"), (full, "refused"), (dead, "lost"), (torn, "lost")],
)
def test_every_kind_of_answer_is_counted_as_such(answer: Answer, counted: str) -> None:
    with serving(answer) as url:
        found = asked(url)
    met = {name for name in COUNTED if getattr(found, name)}
    assert met == {counted}


def test_a_server_that_is_gone_counts_as_a_refusal() -> None:
    with serving(right) as url:
        pass
    found = asked(url)
    assert found.refused and not found.lost


def asked(url: str) -> ClientCounts:
    """Run one client with one request; return its counts."""
    clients = Waiting(url, [GenerateRequest(prompt="x", max_tokens=3)], [TOKENS], seed=0)
    clients.start(1)
    deadline = time.monotonic() + 30.0
    while not any(getattr(clients.counts, name) for name in COUNTED) and time.monotonic() < deadline:
        time.sleep(0.01)
    clients.stop(30.0)
    return clients.counts


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
