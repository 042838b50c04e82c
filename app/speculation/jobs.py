"""Make the jobs that a verifier sends to drafters and fusers, with the tokens not sent there yet."""

from base64 import b64encode
from collections.abc import Iterable, Set

from app.messages import DraftJob, ToDrafter, ToFuser
from app.speculation.routing import Replica, Route
from app.speculation.row_price import UNPRICED, Price
from app.state import Sequence


class DraftDispatcher:
    def __init__(self, verifier: str, *, shares_tokens: bool = False) -> None:
        """`shares_tokens`: drafters on several nodes guess each token together."""
        self._verifier = verifier
        self._shares_tokens = shares_tokens
        self._sent: dict[str, dict[Replica, int]] = {}  # by request

    def jobs(
        self,
        sequence: Sequence,
        route: Route,
        depth: int,
        due_s: float,
        *,
        readers: Set[str] = frozenset(),
        step_s: float = 0.0,
        price: Price = UNPRICED,
        max_nodes: int = 0,
        has_leaves: bool = True,
        is_reading: bool = False,
    ) -> list[DraftJob]:
        """Make a job for each node that drafts and for the fuser; `readers` get the target's last hidden state."""
        kv = sequence.kv
        state = b64encode(kv.state).decode() if kv.state and readers else None
        nodes = tuple(dict.fromkeys(route.homes.values())) if self._shares_tokens else ()
        record, tokens = sequence.record, kv.tokens
        known, length = self._sent.setdefault(record.id, {}), len(tokens)
        jobs = []
        for mailbox, names, replicas in route.recipients:
            start = length
            for replica in replicas:
                start = min(start, known.get(replica, 0))
                known[replica] = length
            job = DraftJob(
                request_id=record.id,
                tenant=record.tenant,
                verifier=self._verifier,
                to=mailbox,
                fuser=route.fuser,
                base=length,
                start=start,
                tokens=tuple(tokens[start:]),
                prompt_length=len(record.prompt_ids),
                max_draft_tokens=depth,
                drafters=names,
                sampling=record.sampling,
                due_s=due_s,
                state=None if state is None or readers.isdisjoint(names) else state,
                step_s=step_s,
                least_survival=price.least_survival,
                max_nodes=max_nodes,
                has_leaves=has_leaves,
                is_reading=is_reading,
                pace=price.pace,
                sharing=nodes if len(nodes) > 1 else (),
            )
            jobs.append(job)
        return jobs

    def final_jobs(self, sequence: Sequence, alive: set[str]) -> list[DraftJob]:
        record, tokens = sequence.record, sequence.tokens
        known = self._sent.pop(record.id, {})
        jobs = []
        for mailbox in dict.fromkeys(box for box, _ in known if box in alive):
            start = min(count for (box, _), count in known.items() if box == mailbox)
            job = DraftJob(
                request_id=record.id,
                tenant=record.tenant,
                verifier=self._verifier,
                to=mailbox,
                fuser=mailbox if (mailbox, True) in known else "",
                base=len(tokens),
                start=start,
                tokens=tuple(tokens[start:]),
                prompt_length=len(record.prompt_ids),
                max_draft_tokens=1,
                drafters=(),
                sampling=record.sampling,
                due_s=0.0,
                is_last=True,
            )
            jobs.append(job)
        return jobs

    def remove(self, request_id: str) -> None:
        self._sent.pop(request_id, None)


def jobs_by_mailbox(jobs: Iterable[DraftJob], fuse: str) -> dict[str, ToDrafter | ToFuser]:
    """Group a verifier's jobs by mailbox; `fuse` is the fusion task's."""
    found: dict[str, list[DraftJob]] = {}
    for job in jobs:
        found.setdefault(job.to, []).append(job)
    return {
        mailbox: ToFuser(jobs=tuple(own)) if mailbox == fuse else ToDrafter(jobs=tuple(own))
        for mailbox, own in found.items()
    }
