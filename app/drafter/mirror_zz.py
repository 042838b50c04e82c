"""A process's own copy of the sequences it drafts for, fed by the new tokens that draft jobs carry.

The truth is in the store (D2): a copy with a gap is not patched, the caller fetches the sequence and replaces
it.
"""

from collections import OrderedDict
from collections.abc import Iterable

from app.messages import DraftJob


class Mirror:
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
            self.forget(job.request_id)
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
        self.forget(request_id)
        fresh = self._sequences[request_id] = list(tokens)
        self._hold(len(fresh))
        return fresh

    def get(self, request_id: str) -> list[int] | None:
        """The sequence as far as it is known."""
        return self._sequences.get(request_id)

    def forget(self, request_id: str) -> None:
        """Drop the sequence; nothing happens if there is none."""
        self._held_tokens -= len(self._sequences.pop(request_id, ()))

    def __len__(self) -> int:
        return len(self._sequences)

    def _hold(self, count: int) -> None:
        self._held_tokens += count
        while self._held_tokens > self._max_tokens and len(self._sequences) > 1:
            self.forget(next(iter(self._sequences)))


def _is_whole(job: DraftJob) -> bool:
    return job.start + len(job.tokens) == job.base
