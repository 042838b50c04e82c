"""Replay an ended request without drafts, to compare its tokens with those that were answered."""

from itertools import zip_longest
from math import inf
from typing import Final

from app.messages import Status
from app.request import SpeculationBounds
from app.store.memory import MemoryStore
from app.store.protocol import Snapshot
from app.verifier.verifier import Verifier


class Replay:
    """Hold a request's second run, all of it in this process's memory."""

    def __init__(self, answered: Snapshot, verifier: Verifier, store: MemoryStore) -> None:
        """`verifier` commits to `store`, and runs nothing else."""
        self.answered: Final = answered
        self._verifier, self._store = verifier, store
        self._id = own = f"audit-{answered.record.id}"  # a tenant of its own shares no cached prefixes
        changes = {"id": own, "tenant": own, "speculation": SpeculationBounds(enabled=False)}
        store.create(answered.record.model_copy(update=changes), limit=1)
        store.assign(own, verifier.owner)
        verifier.adopt([own])

    def step(self) -> bool:
        """Run one step; return whether the replay has ended."""
        self._verifier.step(inf)
        return self._store.ended(self._id)

    def give_back(self) -> None:
        """Release the target's memory; a later step computes again what was in it."""
        for sequence in self._verifier.sequences.values():
            self._verifier.target.release(sequence.kv)

    @property
    def failed(self) -> bool:
        return self._store.snapshot(self._id).status is not Status.DONE

    def difference(self) -> int | None:
        """Return the index of the first token that is not the answered one; None: all are."""
        pairs = enumerate(zip_longest(self.answered.tokens, self._store.snapshot(self._id).tokens))
        return next((index for index, (answered, replayed) in pairs if answered != replayed), None)
