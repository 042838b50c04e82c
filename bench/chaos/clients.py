"""Run the clients of `./paceline chaos`: they know every request's right tokens and resume a stream that breaks."""

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
RESUME_S = 300.0  # of attempts to resume a broken stream: as long as an instance may take to start


@dataclass(slots=True)
class ClientCounts:
    """Hold what became of the requests so far."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)  # ended with other tokens than expected
    failed: list[str] = field(default_factory=list)  # ended with an error, which says what
    lost: list[str] = field(default_factory=list)  # accepted, and no end was received
    refused: dict[str, int] = field(default_factory=dict)  # never accepted and tried again, by reason
    longest_s: float = 0.0  # of a request that ended right
    silences: list[tuple[str, float, float]] = field(default_factory=list)  # between two pieces: client, start, end

    def ended(self) -> dict[str, int]:
        """Return how many requests came to each end."""
        bad = {"wrong": self.wrong, "failed": self.failed, "lost": self.lost}
        return {"right": self.right} | {end: len(requests) for end, requests in bad.items()}


class Clients:
    """Clients at work at once, each with one request after another out of `requests`, until `stop`.

    One thread a client; `counts` is written under a lock and may be read at any time.
    """

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
        """Start this number of clients."""
        self._moved_s = {f"client-{i}": 0.0 for i in range(count)}
        self._threads = [threading.Thread(target=self._run, daemon=True, name=f"client-{i}") for i in range(count)]
        for thread in self._threads:
            thread.start()

    def all_moved_since(self, since_s: float) -> bool:
        """Tell whether every client has received a piece of an answer or its end since then (monotonic, seconds)."""
        return all(moved_s > since_s for moved_s in [*self._moved_s.values()])

    def stop(self, limit_s: float) -> None:
        """Send no new requests and wait for those under way; what still waits after `limit_s` counts as lost."""
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
            except (GenerationFailed, InvalidRequest) as error:  # the request had been accepted
                self._record(self.counts.lost, f"request {number}: {error}")
            except PacelineError as error:
                with self._lock:
                    self.counts.refused[str(error)] = self.counts.refused.get(str(error), 0) + 1
                time.sleep(RETRY_S)
            except Exception as error:  # no end was received, and this client must outlive any error
                self._record(self.counts.lost, f"request {number}: {error!r}")

    def _ask(self, number: int) -> tuple[Result, float]:
        """Return the result and the seconds it took."""
        started_s, last_s = time.monotonic(), 0.0

        def came(text: str) -> None:
            nonlocal last_s
            now_s, client = time.monotonic(), threading.current_thread().name
            if last_s:
                self.counts.silences.append((client, last_s, now_s))
            last_s = self._moved_s[client] = now_s

        result = generate(self._url, self._requests[number], came, resume_s=RESUME_S)
        return result, time.monotonic() - started_s

    def _judge(self, number: int, result: Result, took_s: float) -> None:
        if result.status is not Status.DONE:
            self._record(self.counts.failed, f"request {number}: {result.status}: {result.error}")
        elif result.token_ids != self._expected[number]:
            self._record(self.counts.wrong, f"request {number} ({result.id}): {result.token_ids[:8]}...")
        else:
            with self._lock:
                self.counts.right += 1
                self.counts.longest_s = max(self.counts.longest_s, took_s)

    def _record(self, where: list[str], what: str) -> None:
        with self._lock:
            where.append(what)
