"""Run the stages in order: admit -> route -> draft -> fuse -> schedule -> verify -> commit -> stream.

A segment is the part that one kind of worker runs. It keeps caches only: losing them costs time, never a token (design
D2).
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from app.config import Settings
from app.drafter.drafter import DrafterNode
from app.engine.text.tokenizer import Tokenizer
from app.fuser.fuser import Fuser
from app.messages import Draft, DraftJob, Event, Record, SharedPath, ToFuser, TokenGuess, TreeMessage
from app.request import GenerateRequest
from app.stages.admit import admit
from app.store.protocol import Requests
from app.verifier.verifier import Verifier

log = logging.getLogger(__name__)
SentTree = tuple[str, TreeMessage]  # the verifier's mailbox, and its tree
DraftHere = Callable[[list[DraftJob]], tuple[list[DraftJob], list[SentTree]]]
SentPath = tuple[str, SharedPath]  # a drafter node's mailbox, and a path that it shares


def begin_drafts(node: DrafterNode, fuser: Fuser, jobs: Iterable[DraftJob]) -> None:
    """Open the rounds that this node fuses, and begin to draft for each sequence's newest job."""
    newest = [*{job.request_id: job for job in jobs}.values()]
    fuser.expect(job for job in newest if job.fuser == node.mailbox)
    node.begin(newest)


def go_on_drafting(node: DrafterNode, fuser: Fuser) -> tuple[list[Draft], list[SentTree]]:
    """Make a pass, and fuse what is done where this node alone drafts; return other fusers' drafts, and the trees."""
    away: list[Draft] = []
    fused: list[DraftJob] = []
    for batch in node.go_on():
        here = {job.request_id: job for job in batch.jobs if job.fuser == node.mailbox}
        fused += here.values()
        fuser.receive(draft for draft in batch.drafts if draft.request_id in here)
        away += [draft for draft in batch.drafts if draft.request_id not in here]
    return away, fuser.finish(fused)


def draft_and_fuse(node: DrafterNode, fuser: Fuser, jobs: Iterable[DraftJob]) -> tuple[list[Draft], list[SentTree]]:
    """Draft from begin to end."""
    begin_drafts(node, fuser, jobs)
    away: list[Draft] = []
    trees: list[SentTree] = []
    while node.is_drafting:
        drafts, fused = go_on_drafting(node, fuser)
        away += drafts
        trees += fused
    return away, trees


def gather_and_fuse(fuser: Fuser, messages: Iterable[ToFuser], now_s: float) -> tuple[list[SentPath], list[SentTree]]:
    """Take in mail; return the paths that nodes are to guess on, and the trees of complete or due rounds."""
    guesses: list[TokenGuess] = []
    for message in messages:
        fuser.expect(message.jobs, now_s)
        fuser.receive(message.drafts)
        guesses += message.guesses
    paths = fuser.share(guesses, now_s)
    return paths, fuser.collect(now_s)


def draft_here(fuser: Fuser, mailbox: str, jobs: Iterable[DraftJob]) -> tuple[list[DraftJob], list[SentTree]]:
    """Run the jobs of model-free drafters, to the verifier's own mailbox; return the jobs for others, and the trees."""
    here: list[DraftJob] = []
    away: list[DraftJob] = []
    for job in jobs:
        (here if job.to == mailbox else away).append(job)
    if not here:
        return away, []
    fuser.expect(here)
    return away, fuser.collect(float("inf"))


def run_round(
    verifier: Verifier, draft: DraftHere, post: Callable[[list[DraftJob]], None], now: Callable[[], float]
) -> None:
    """Run a verifier's part of a round: commit a step while the next one runs.

    The jobs are posted first. Where halves alternate, the other half's step is launched before drafting. `draft`
    returns the jobs for others, and trees; `post` sends jobs; `now` is the wall clock. Raises StoreUnavailable; the
    next round goes on from there.
    """
    jobs = verifier.collect()
    if not verifier.speculation.is_together:
        verifier.launch(now())
    jobs, trees = draft(jobs)
    verifier.receive(tree for _, tree in trees)
    verifier.launch(now())
    if jobs:
        post(jobs)
    verifier.commit()


class LocalPipeline:
    def __init__(
        self, verifier: Verifier, node: DrafterNode, fuser: Fuser, store: Requests, tokenizer: Tokenizer
    ) -> None:
        self.verifier: Final = verifier
        self.node: Final = node
        self.fuser: Final = fuser
        self.store: Final = store
        self.tokenizer: Final = tokenizer

    def submit(self, request: GenerateRequest, settings: Settings) -> Record:
        """Admit a request, which `step` or `events` runs. Raises InvalidRequest, QueueFull."""
        known = self.verifier.speculation.pool.allowed(None)
        record = admit(
            request, self.tokenizer, settings, request_id=uuid.uuid4().hex, now_s=time.time(), drafters=known
        )
        self.store.create(record, limit=settings.max_active_requests)
        self.store.assign(record.id, self.verifier.owner)
        self.verifier.adopt([record.id])
        return record

    def step(self) -> None:
        jobs = self.verifier.step(float("inf"))
        if jobs:
            self.verifier.receive(self.draft(jobs))

    def draft(self, jobs: Iterable[DraftJob]) -> list[TreeMessage]:
        _, trees = draft_and_fuse(self.node, self.fuser, jobs)
        return [tree for _, tree in trees]

    def events(self, record: Record) -> Iterator[Event]:
        """Run until the request ends."""
        offset = 0
        while True:
            for event in self.store.events(record.id, offset):
                yield event
                offset = event.offset + len(event.tokens)
                if event.finish_reason is not None:
                    return
            self.step()
