"""Cancel requests whose clients disconnect.

Threads that wait for answers sleep in Redis, so one thread checks all connections, every LOOK_S, while there are any.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from app.errors import NotFound, StoreUnavailable
from app.logs import of
from app.messages import FinishReason
from workers.deployment import Deployment

log = logging.getLogger(__name__)

LOOK_S = 0.02  # about a round on a CPU; a check costs less than a microsecond a client


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    request_ids: tuple[str, ...]
    is_gone: Callable[[], bool]


class DisconnectWatcher:
    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._lock = threading.Lock()
        self._calls: set[_Call] = set()
        self._is_looking = False

    @contextmanager
    def watched(self, request_ids: Sequence[str], is_gone: Callable[[], bool]) -> Iterator[None]:
        call = _Call(tuple(request_ids), is_gone)
        with self._lock:
            self._calls.add(call)
            if not self._is_looking:
                self._is_looking = True
                threading.Thread(target=self._look, name="disconnects", daemon=True).start()
        try:
            yield
        finally:
            self._remove(call)

    def _look(self) -> None:
        while calls := self._waiting():
            for call in calls:
                if call.is_gone() and all(self._cancel(request_id) for request_id in call.request_ids):
                    self._remove(call)
            time.sleep(LOOK_S)

    def _waiting(self) -> list[_Call]:
        with self._lock:
            self._is_looking = bool(self._calls)
            return list(self._calls)

    def _remove(self, call: _Call) -> None:
        with self._lock:
            self._calls.discard(call)

    def _cancel(self, request_id: str) -> bool:
        """False: try again."""
        try:
            self._deployment.requests.end(request_id, FinishReason.CANCELLED)
        except NotFound:
            pass
        except StoreUnavailable:
            log.warning("its client has disconnected; it cannot be cancelled yet", extra=of(request_id))
            return False
        except Exception:  # the other calls must still be checked
            log.exception("its client has disconnected; it cannot be cancelled", extra=of(request_id))
        return True
