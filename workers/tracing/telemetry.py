"""What of a process's work goes to a collector of traces, if the settings name one: gathered as it is done, sent by its
heartbeat. Without one there is none of this (`app.config.Settings.otlp_url`).

Beside the spans of work there is, for each request, the time between two steps of its verifier: it waited for drafts,
or for its turn.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from app.config import Settings
from app.errors import InvalidSettings
from app.messages import FinishReason
from app.telemetry.verifier_metrics import RequestProgress

MOST_KEPT = 65_536  # pieces of work between two flushes
MOST_KNOWN = 4096  # requests
SHORTEST_WAIT_S = 0.0001


class TracedWork(NamedTuple):
    """A piece of work; wall clock."""

    name: str
    start_s: float
    end_s: float
    sequences: int
    request_ids: tuple[str, ...]


class Telemetry:
    """The traces of one process, for one thread that works and one that flushes."""

    def __init__(self, settings: Settings, kind: str, node: str) -> None:
        """Raises InvalidSettings without the packages that it takes."""
        assert settings.otlp_url is not None
        try:
            otlp = import_module("workers.tracing.otlp")
        except ImportError as error:
            raise InvalidSettings(
                f"PACELINE_OTLP_URL: {error.name} is missing; install requirements-tracing.txt, or the extra `tracing`"
            ) from error
        self._is_traced = otlp.is_traced
        self._otlp = otlp.Otlp(settings.otlp_url, node)
        self._part = settings.otlp_part
        self._kind, self._node = kind, node
        self._waiting = deque[TracedWork](maxlen=MOST_KEPT)
        self._start_s = 0.0
        self._about: tuple[str, ...] = ()
        self._rounds: OrderedDict[str, tuple[int, float]] = (
            OrderedDict()
        )  # by request: steps so far, the last one's end

    def toggle(self, is_busy: bool) -> None:
        """A piece of work begins now, or has ended."""
        now_s = time.time()
        if is_busy:
            self._start_s, self._about = now_s, ()
        elif self._about:
            self._waiting.append(TracedWork(self._kind, self._start_s, now_s, len(self._about), self._about))

    def about(self, request_ids: Iterable[str]) -> None:
        """The piece of work under way was for these."""
        self._about = tuple(request_ids)

    def note(self, name: str, start_s: float, request_id: str) -> None:
        """Something else was done for a request, until now. From any thread."""
        self._waiting.append(TracedWork(name, start_s, time.time(), 1, (request_id,)))

    def flush(self, told: Mapping[str, RequestProgress]) -> None:
        """Send what waits, and the requests that have ended."""
        for request_id, news in told.items():
            if news.started_s is not None:  # here; else it had waited for another verifier
                self._rounds.setdefault(request_id, (0, news.created_s))
        while self._waiting:
            work = self._waiting.popleft()
            for request_id in work.request_ids:
                if self._is_traced(request_id, self._part):
                    self._send(work, request_id)
        for request_id, news in told.items():
            if news.reason is not None and self._is_traced(request_id, self._part):
                self._end(request_id, news)

    def close(self) -> None:
        """Send the rest."""
        self._otlp.close()

    def _send(self, work: TracedWork, request_id: str) -> None:
        facts: dict[str, Any] = {"paceline.node": self._node, "paceline.batch.sequences": work.sequences}
        if work.name == "verify":
            number, since_s = self._round(request_id, work)
            facts["paceline.round"] = number
            if work.start_s - since_s > SHORTEST_WAIT_S:
                self._otlp.span(request_id, "wait", since_s, work.start_s, {"paceline.round": number})
        self._otlp.span(request_id, work.name, work.start_s, work.end_s, facts)

    def _round(self, request_id: str, work: TracedWork) -> tuple[int, float]:
        """Which step of this verifier this is for the request, and since when it had been waiting."""
        number, since_s = self._rounds.get(request_id, (0, work.start_s))
        self._rounds[request_id] = number + 1, work.end_s
        self._rounds.move_to_end(request_id)
        while len(self._rounds) > MOST_KNOWN:
            self._rounds.popitem(last=False)
        return number + 1, since_s

    def _end(self, request_id: str, news: RequestProgress) -> None:
        is_done = news.reason in (FinishReason.STOP, FinishReason.LENGTH)
        end_s = news.stats.last_token_s if is_done else None
        facts = {
            "paceline.finish_reason": str(news.reason),
            "paceline.tokens": news.tokens,
            "paceline.rounds": news.stats.rounds,
            "paceline.drafted": news.stats.drafted,
            "paceline.accepted": news.stats.accepted,
        }
        self._otlp.request(request_id, news.created_s, end_s or time.time(), facts)
