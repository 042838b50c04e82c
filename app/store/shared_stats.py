"""Keep what this process learns together with what the others do, through the store; called from the pulse."""

import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Protocol

from app.state import Change
from app.store.sums_zz import SumsStore

WRITE_EVERY_S = 1.0
LOAD_EVERY_S = 30.0  # what others wrote to fields that this process does not write to itself


class Learnt(Protocol):
    """Groups of decaying sums in this process; its methods are called from another thread than those that learn."""

    def groups(self) -> Iterable[str]:
        """What it wants to share at present."""
        ...

    def changes(self, group: str) -> dict[str, Change]:
        """What was learnt since the last call, as (kept, added) by field; it stays part of what is known here."""
        ...

    def absorb(self, group: str, sums: Mapping[str, list[float]]) -> None:
        """These fields as the store has them, all that `changes` gave so far included; what was learnt since then
        goes on top."""
        ...


class Exchange:
    """Writes changes, when there are any, and reads what others wrote."""

    def __init__(self, learnt: Learnt, store: SumsStore) -> None:
        self._learnt = learnt
        self._store = store
        self._writer = uuid.uuid4().hex
        self._batches: dict[str, int] = {}  # sent so far, by group
        self._unsure: dict[str, dict[str, Change]] = {}  # sent, and not known to have arrived
        self._loaded_s: dict[str, float] = {}  # monotonic
        self._beaten_s = float("-inf")

    def beat(self) -> None:
        """At most once in WRITE_EVERY_S. Raises StoreUnavailable; what could not be written goes out next time."""
        now = time.monotonic()
        if now - self._beaten_s < WRITE_EVERY_S:
            return
        self._beaten_s = now
        for group in list(self._learnt.groups()):
            self._load(group, now)
            self._write(group)

    def flush(self) -> None:
        """Write what there is, at once: this process ends. Raises StoreUnavailable."""
        for group in list(self._learnt.groups()):
            self._write(group)  # again what may not have arrived,
            self._write(group)  # then what was learnt since

    def _load(self, group: str, now: float) -> None:
        if group in self._unsure or now - self._loaded_s.get(group, float("-inf")) < LOAD_EVERY_S:
            return
        self._learnt.absorb(group, self._store.load(group))
        self._loaded_s[group] = now

    def _write(self, group: str) -> None:
        if group not in self._unsure:
            changes = self._learnt.changes(group)
            if not changes:
                return
            self._batches[group] = self._batches.get(group, 0) + 1
            self._unsure[group] = changes
        # Sent again after a lost reply it is the same batch under the same number: counted once.
        sums = self._store.merge(group, self._writer, self._batches[group], self._unsure[group])
        del self._unsure[group]
        self._learnt.absorb(group, sums)
