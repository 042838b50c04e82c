"""Keeping up with sequences from outside their verifier: what drafting and fusing share."""

import binascii
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Iterable

from app.errors import NotFound
from app.messages import DraftJob
from app.stages.draft.protocol import Context, Drafter
from app.store.protocol import Requests

Fetch = Callable[[str], list[int] | None]  # request id -> its tokens out of the store, prompt included


def fetcher(store: Requests) -> Fetch:
    """Look a sequence up in the store; None once it is gone."""

    def fetch(request_id: str) -> list[int] | None:
        try:
            snapshot = store.snapshot(request_id)
        except NotFound:
            return None
        return [*snapshot.record.prompt_ids, *snapshot.tokens]

    return fetch


class Replicas:
    """Copies of the sequences that jobs speak of, and the drafters that watch them grow."""

    def __init__(self, drafters: Iterable[Drafter], fetch: Fetch) -> None:
        self.drafters = list(drafters)
        self._fetch = fetch
        self._mirror = TokenCopies()

    def follow(self, job: DraftJob) -> Context | None:
        """The job's sequence as it stands; None if the job is stale or its sequence is gone."""
        if self._mirror.is_stale(job):
            return None
        tokens = self._mirror.update(job)
        if tokens is None:
            fetched = self._fetch(job.request_id)
            if fetched is None or len(fetched) < job.base:
                return None
            tokens = self._mirror.replace(job.request_id, fetched[: job.base])
        context = Context(
            job.request_id, job.tenant, tokens, job.prompt_length, job.max_draft_tokens, job.sampling, _state(job)
        )
        for drafter in self.drafters:
            drafter.update(context)
        return context

    def remove(self, request_id: str) -> None:
        """The sequence ended."""
        self._mirror.remove(request_id)
        for drafter in self.drafters:
            drafter.remove(request_id)


def _state(job: DraftJob) -> bytes | None:
    """The target's state that came with the job; what is no base64 is none."""
    try:
        return b64decode(job.state, validate=True) if job.state else None
    except (binascii.Error, ValueError):
        return None


class TokenCopies:
    """Tokens by request id; the least recently used sequences go first. Lists only grow, until replaced."""

    def __init__(self, max_tokens: int = 2_000_000) -> None:
        self._max_tokens = max_tokens
        self._held_tokens = 0
        self._sequences: OrderedDict[str, list[int]] = OrderedDict()

    def update(self, job: DraftJob) -> list[int] | None:
        """The sequence with the job's tokens appended; None on a gap or contradiction: fetch it and
        `replace`.

        A stale job changes nothing and returns the longer sequence; ask `is_stale` first.
        """
        known = self._sequences.get(job.request_id)
        if known is None:
            return self.replace(job.request_id, job.tokens) if job.start == 0 and _is_whole(job) else None
        shared = len(known) - job.start
        if shared < 0 or not _is_whole(job):
            return None
        if known[job.start : job.start + len(job.tokens)] != list(job.tokens[:shared]):
            self.remove(job.request_id)
            return self.replace(job.request_id, job.tokens) if job.start == 0 else None
        fresh = job.tokens[shared:]
        known.extend(fresh)
        self._sequences.move_to_end(job.request_id)
        self._hold(len(fresh))
        return known

    def is_stale(self, job: DraftJob) -> bool:
        """Is the sequence known to be longer than this job says?"""
        return len(self._sequences.get(job.request_id, ())) > job.base

    def replace(self, request_id: str, tokens: Iterable[int]) -> list[int]:
        """Take this as the whole sequence."""
        self.remove(request_id)
        fresh = self._sequences[request_id] = list(tokens)
        self._hold(len(fresh))
        return fresh

    def get(self, request_id: str) -> list[int] | None:
        """The sequence as far as it is known."""
        return self._sequences.get(request_id)

    def remove(self, request_id: str) -> None:
        """Drop the sequence; nothing happens if there is none."""
        self._held_tokens -= len(self._sequences.pop(request_id, ()))

    def __len__(self) -> int:
        return len(self._sequences)

    def _hold(self, count: int) -> None:
        self._held_tokens += count
        while self._held_tokens > self._max_tokens and len(self._sequences) > 1:
            self.remove(next(iter(self._sequences)))


def _is_whole(job: DraftJob) -> bool:
    return job.start + len(job.tokens) == job.base
