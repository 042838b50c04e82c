"""Count events in a process; its heartbeat sends the additions, and Redis holds the sums.

Implements `app.store.shared_stats.SharedStats` without decay: a batch counts once however often it is sent.
"""

import json
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping

from app.metrics import GROUP, Change, Metric

MOST_SERIES = 512  # of a metric; the names of drafters are not trusted
LONGEST_LABEL = 64
OTHER = "other"


class Counters:
    """The counters and histograms of this process. Any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._added: dict[tuple[Metric, tuple[str, ...]], list[float]] = {}
        self._series: dict[Metric, set[tuple[str, ...]]] = {}

    def count(self, metric: Metric, *labels: str, by: float = 1.0) -> None:
        with self._lock:
            self._sums(metric, labels)[0] += by

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        with self._lock:
            sums = self._sums(metric, labels)
            sums[bisect_left(metric.buckets, value)] += 1.0
            sums[-1] += value

    def groups(self) -> Iterable[str]:
        return (GROUP,)

    def changes(self, group: str) -> dict[str, Change]:
        with self._lock:
            added, self._added = self._added, {}
        return {field(*key): ([1.0] * len(sums), sums) for key, sums in added.items()}

    def absorb(self, group: str, sums: Mapping[str, list[float]]) -> None: ...

    def _sums(self, metric: Metric, labels: tuple[str, ...]) -> list[float]:
        found = self._added.get((metric, labels))
        return self._series_of(metric, labels) if found is None else found

    def _series_of(self, metric: Metric, labels: tuple[str, ...]) -> list[float]:
        """Begin a series again after a sending; past MOST_SERIES all further ones share one."""
        labels = tuple(label[:LONGEST_LABEL] for label in labels)
        known = self._series.setdefault(metric, set())
        if labels not in known:
            if len(known) >= MOST_SERIES:
                labels = (OTHER,) * len(labels)
            known.add(labels)
        return self._added.setdefault((metric, labels), [0.0] * metric.size)


def field(metric: Metric, labels: tuple[str, ...]) -> str:
    return json.dumps([metric.name, *labels])


def series(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Read metric and labels from a field's name; None if `field` did not write it."""
    try:
        metric, *labels = json.loads(name)
    except (ValueError, TypeError):
        return None
    return (metric, tuple(labels)) if all(isinstance(part, str) for part in (metric, *labels)) else None
