"""Keeping up with sequences from outside their verifier: what drafting and fusing share."""

import binascii
from base64 import b64decode
from collections.abc import Callable, Iterable

from app.drafter.mirror_zz import Mirror
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


class Following:
    """Copies of the sequences that jobs speak of, and the drafters that watch them grow."""

    def __init__(self, drafters: Iterable[Drafter], fetch: Fetch) -> None:
        self.drafters = list(drafters)
        self._fetch = fetch
        self._mirror = Mirror()

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
            drafter.observe(context)
        return context

    def forget(self, request_id: str) -> None:
        """The sequence ended."""
        self._mirror.forget(request_id)
        for drafter in self.drafters:
            drafter.forget(request_id)


def _state(job: DraftJob) -> bytes | None:
    """The target's state that came with the job; what is no base64 is none."""
    try:
        return b64decode(job.state, validate=True) if job.state else None
    except (binascii.Error, ValueError):
        return None
