"""The order of the stages: admit -> route -> draft -> fuse -> schedule -> verify -> commit -> stream.

The only file that knows it. Each segment is what one kind of worker runs; the Celery workers and `Local`, the
whole pipeline in one process, call the same ones. A segment keeps caches only: whatever it forgets costs time,
never a token (design D2). No torch here: models are arguments.
"""

import logging
from collections.abc import Iterator
from typing import Final

from app.config import Settings
from app.drafter.drafter import DrafterNode
from app.engine.text.tokenizer import Tokenizer
from app.intake_zz import take_in
from app.messages import Event, Record
from app.request import GenerateRequest
from app.store.protocol import Requests
from app.verifier.verifier import Verifier

log = logging.getLogger(__name__)


class LocalPipeline:
    """The whole pipeline in one process: one verifier, one drafter node that fuses; the same segments, no queues."""

    def __init__(self, verifying: Verifier, drafting: DrafterNode, store: Requests, tokenizer: Tokenizer) -> None:
        self.verifier: Final = verifying
        self.store: Final = store
        self.tokenizer: Final = tokenizer
        self.node: Final = drafting

    def submit(self, request: GenerateRequest, settings: Settings) -> Record:
        """Admit a request; `step` or `events` runs it. Raises InvalidRequest, QueueFull."""
        known = self.verifier.speculation.pool.allowed(None)
        record = take_in(request, self.tokenizer, self.store, settings, drafters=known)
        self.store.assign(record.id, self.verifier.owner)
        self.verifier.adopt([record.id])
        return record

    def step(self) -> None:
        """One verifier step and the drafts for the next."""
        jobs = self.verifier.step(float("inf"))
        if jobs:
            _, trees = self.node.run(jobs)
            self.verifier.receive(tree for _, tree in trees)

    def events(self, record: Record) -> Iterator[Event]:
        """Run until the request ends, yielding its events as they are committed."""
        offset = 0
        while True:
            for event in self.store.events(record.id, offset):
                yield event
                offset = event.offset + len(event.tokens)
                if event.finish_reason is not None:
                    return
            self.step()
