"""The clients of `./paceline chaos`: they know what every request must say, and come back when a stream breaks."""

import random
import threading
import time
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field

from app.errors import GenerationFailed, InvalidRequest, PacelineError
from app.local.client import generate
from app.messages import Result, Status
from app.request import GenerateRequest

RETRY_S = 0.25
STALL_S = 0.5  # a shorter silence is an ordinary one


@dataclass(slots=True)
class ClientCounts:
    """What became of the requests so far."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)  # ended with other tokens than it must
    failed: list[str] = field(default_factory=list)  # ended with an error, which says what
    lost: list[str] = field(default_factory=list)  # accepted, and no end was heard of
    refused: int = 0  # never accepted: the client tried again
    longest_s: float = 0.0  # of one that ended right
    stalls: list[tuple[float, float]] = field(default_factory=list)  # between two pieces of an answer: (start, end)


class Clients:
    """So many at once, each with one request after another out of `requests`, until told to stop."""

    def __init__(
        self, url: str, requests: Listed[GenerateRequest], expected: Listed[tuple[int, ...]], seed: int
    ) -> None:
        self.counts = ClientCounts()
        self._url = url
        self._requests, self._expected = requests, expected
        self._draw = random.Random(seed)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._moved_s: dict[str, float] = {}  # by client

    def start(self, count: int) -> None:
        """Let them come."""
        self._moved_s = {f"client-{i}": 0.0 for i in range(count)}
        self._threads = [threading.Thread(target=self._run, daemon=True, name=f"client-{i}") for i in range(count)]
        for thread in self._threads:
            thread.start()

    def all_moved_since(self, moment_s: float) -> bool:
        """Has every client got something, an answer's piece or its end, since then (monotonic)?"""
        return all(moved_s > moment_s for moved_s in [*self._moved_s.values()])

    def stop(self, limit_s: float) -> None:
        """No new requests; wait for the ends of those under way. Whoever still waits after `limit_s` counts as lost."""
        self._stopping.set()
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                with self._lock:
                    self.counts.lost.append(f"{thread.name} still waits after {limit_s:.0f} s")

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                number = self._draw.randrange(len(self._requests))
            try:
                self._judge(number, *self._ask(number))
            except (GenerationFailed, InvalidRequest) as error:  # it had been accepted
                self._note(self.counts.lost, f"request {number}: {error}")
            except PacelineError:
                with self._lock:
                    self.counts.refused += 1
                time.sleep(RETRY_S)
            except Exception as error:  # whatever it is: nobody heard of an end, and this client must not end with it
                self._note(self.counts.lost, f"request {number}: {error!r}")

    def _ask(self, number: int) -> tuple[Result, float]:
        """The result, and the seconds it took."""
        started_s = last_s = time.monotonic()

        def came(text: str) -> None:
            nonlocal last_s
            now_s = time.monotonic()
            if now_s - last_s > STALL_S:
                self.counts.stalls.append((last_s, now_s))
            last_s = self._moved_s[threading.current_thread().name] = now_s

        return generate(self._url, self._requests[number], came), time.monotonic() - started_s

    def _judge(self, number: int, result: Result, took_s: float) -> None:
        if result.status is not Status.DONE:
            self._note(self.counts.failed, f"request {number}: {result.status}: {result.error}")
        elif result.token_ids != self._expected[number]:
            self._note(self.counts.wrong, f"request {number} ({result.id}): {result.token_ids[:8]}...")
        else:
            with self._lock:
                self.counts.right += 1
                self.counts.longest_s = max(self.counts.longest_s, took_s)

    def _note(self, where: list[str], what: str) -> None:
        with self._lock:
            where.append(what)
