"""The jobs a verifier sends out: to everybody only what they have not been told."""

from base64 import b64encode
from collections.abc import Iterable, Set

from app.messages import DraftJob, ToDrafter, ToFuser
from app.stages.route.router import Route
from app.state import Sequence

Place = tuple[str, bool]  # mailbox, and whether it was told as the one that fuses: both halves of a node keep a copy


class DraftDispatcher:
    """Remembers how much of each sequence every drafter node and fuser knows, and makes their jobs."""

    def __init__(self, verifier: str) -> None:
        """`verifier` is the mailbox that the trees go to."""
        self._verifier = verifier
        self._sent: dict[str, dict[Place, int]] = {}  # by request

    def unread(self, sequence: Sequence, mailbox: str) -> int:
        """Tokens of the sequence that this node's drafters have not been sent."""
        return len(sequence.tokens) - self._sent.get(sequence.record.id, {}).get((mailbox, False), 0)

    def jobs(
        self,
        sequence: Sequence,
        route: Route,
        depth: int,
        due_s: float,
        *,
        readers: Set[str] = frozenset(),
        run_ahead: bool = False,
        skip_models_above: float = 1.0,
    ) -> list[DraftJob]:
        """One for each node that drafts and for whoever fuses; with the target's state where a drafter reads it."""
        state = b64encode(sequence.kv.state).decode() if sequence.kv.state and readers else None
        jobs = []
        for mailbox, names in route.recipients.items():
            more = {
                "state": state if readers & set(names) else None,
                "run_ahead": run_ahead,
                "skip_models_above": skip_models_above,
            }
            jobs.append(self._job(sequence, mailbox, route, names, depth, due_s).model_copy(update=more))
        return jobs

    def final_jobs(self, sequence: Sequence, alive: set[str]) -> list[DraftJob]:
        """Tell those who followed an ended sequence, and live, what came last."""
        told = self._sent.pop(sequence.record.id, {})
        jobs = []
        for mailbox in dict.fromkeys(box for box, _ in told if box in alive):
            start = min(count for (box, _), count in told.items() if box == mailbox)
            fuser = mailbox if (mailbox, True) in told else ""
            jobs.append(_job(sequence, self._verifier, mailbox, fuser, start, (), 1, 0.0))
        return [job.model_copy(update={"is_last": True}) for job in jobs]

    def remove(self, request_id: str) -> None:
        """Nothing more goes out for it."""
        self._sent.pop(request_id, None)

    def _job(
        self, sequence: Sequence, mailbox: str, route: Route, names: tuple[str, ...], depth: int, due_s: float
    ) -> DraftJob:
        told = self._sent.setdefault(sequence.record.id, {})
        places = [(mailbox, True)] if mailbox == route.fuser else []
        places += [(mailbox, False)] if mailbox in route.homes.values() else []
        start = min(told.get(place, 0) for place in places)
        told.update(dict.fromkeys(places, len(sequence.tokens)))
        return _job(sequence, self._verifier, mailbox, route.fuser, start, names, depth, due_s)


def _job(
    sequence: Sequence,
    verifier: str,
    mailbox: str,
    fuser: str,
    start: int,
    names: tuple[str, ...],
    depth: int,
    due_s: float,
) -> DraftJob:
    record = sequence.record
    return DraftJob(
        request_id=record.id,
        tenant=record.tenant,
        verifier=verifier,
        to=mailbox,
        fuser=fuser,
        base=len(sequence.tokens),
        start=start,
        tokens=tuple(sequence.tokens[start:]),
        prompt_length=len(record.prompt_ids),
        max_draft_tokens=depth,
        drafters=names,
        sampling=record.sampling,
        due_s=due_s,
    )


def jobs_by_mailbox(jobs: Iterable[DraftJob], fuse: str) -> dict[str, ToDrafter | ToFuser]:
    """A verifier's jobs; `fuse` is the fusion task's mailbox."""
    found: dict[str, list[DraftJob]] = {}
    for job in jobs:
        found.setdefault(job.to, []).append(job)
    return {
        mailbox: ToFuser(jobs=tuple(own)) if mailbox == fuse else ToDrafter(jobs=tuple(own))
        for mailbox, own in found.items()
    }
