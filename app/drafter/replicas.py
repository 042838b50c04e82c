"""Keep replicas of sequences outside their verifier, for drafting and fusing."""

import binascii
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from app.errors import NotFound
from app.messages import DraftJob
from app.stages.draft.protocol import Context, Drafter
from app.store.protocol import Requests

MAX_TOKENS = 2_000_000  # of all replicas together
Fetch = Callable[[str], list[int] | None]  # request id -> its tokens out of the store, prompt included
Own = Callable[[str], list[int] | None]  # request id -> its tokens, where this process's verifier runs it


def none_here(request_id: str) -> None:
    """Be the `Own` of a process without a verifier."""


def fetcher(store: Requests) -> Fetch:
    """Make a reader of sequences in the store; it returns None once a sequence is gone."""

    def fetch(request_id: str) -> list[int] | None:
        try:
            snapshot = store.snapshot(request_id)
        except NotFound:
            return None
        return [*snapshot.record.prompt_ids, *snapshot.tokens]

    return fetch


class Replicas:
    """Tokens by request id, and the drafters that learn from them.

    The least recently used are dropped first. A list only grows, until it is replaced. Where `own` returns a list it
    is used instead.
    """

    def __init__(
        self, drafters: Iterable[Drafter], fetch: Fetch, max_tokens: int = MAX_TOKENS, own: Own = none_here
    ) -> None:
        self.drafters: Final = tuple(drafters)
        self._fetch = fetch
        self._own = own
        self._max_tokens = max_tokens
        self._held_tokens = 0
        self._tokens: OrderedDict[str, list[int]] = OrderedDict()

    def update(self, job: DraftJob) -> Context | None:
        """Bring the job's replica up to its length, from the store if the job does not continue it.

        Returns None if the job is stale, or the store has no such sequence of this length.
        """
        tokens = self._own(job.request_id)
        if tokens is None or len(tokens) != job.base:
            tokens = self._replica(job)
        if tokens is None:
            return None
        context = Context(
            job.request_id,
            job.tenant,
            tokens,
            job.prompt_length,
            job.max_draft_tokens,
            job.sampling,
            job.least_survival,
            job.max_nodes,
            job.pace,
            job.step_s,
            _state(job),
            job.has_leaves,
            job.is_reading,
        )
        for drafter in self.drafters:
            drafter.update(context)
        return context

    def remove(self, request_id: str) -> None:
        self._drop(request_id)
        for drafter in self.drafters:
            drafter.remove(request_id)

    def _replica(self, job: DraftJob) -> list[int] | None:
        if len(self._tokens.get(job.request_id, ())) > job.base:
            return None
        if job.is_last and job.request_id not in self._tokens:
            return None  # not worth fetching
        tokens = self._extended(job)
        return self._fetched(job) if tokens is None else tokens

    def _extended(self, job: DraftJob) -> list[int] | None:
        known = self._tokens.get(job.request_id, [])
        shared = len(known) - job.start  # of the job's tokens
        if shared < 0 or job.start + len(job.tokens) != job.base:
            return None
        if not known or known[job.start :] != list(job.tokens[:shared]):
            self._drop(job.request_id)
            return self._replace(job.request_id, job.tokens) if job.start == 0 else None
        known.extend(job.tokens[shared:])
        self._use(job.request_id, len(job.tokens) - shared)
        return known

    def _fetched(self, job: DraftJob) -> list[int] | None:
        fetched = self._fetch(job.request_id)
        if fetched is None or len(fetched) < job.base:
            return None
        return self._replace(job.request_id, fetched[: job.base])

    def _replace(self, request_id: str, tokens: Sequence[int]) -> list[int]:
        self._drop(request_id)
        replica = self._tokens[request_id] = list(tokens)
        self._use(request_id, len(replica))
        return replica

    def _use(self, request_id: str, fresh: int) -> None:
        self._tokens.move_to_end(request_id)
        self._held_tokens += fresh
        while self._held_tokens > self._max_tokens and len(self._tokens) > 1:
            self._drop(next(iter(self._tokens)))

    def _drop(self, request_id: str) -> None:
        self._held_tokens -= len(self._tokens.pop(request_id, ()))


def _state(job: DraftJob) -> bytes | None:
    try:
        return b64decode(job.state, validate=True) if job.state else None
    except (binascii.Error, ValueError):
        return None
