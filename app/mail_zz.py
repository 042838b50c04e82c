"""Jobs and trees as mail: one message for each mailbox, so that what belongs together arrives together."""

from collections.abc import Iterable

from app.messages import DraftJob, ToDrafter, ToFuser, ToVerifier, TreeMessage


def jobs_by_mailbox(jobs: Iterable[DraftJob], fuse: str) -> dict[str, ToDrafter | ToFuser]:
    """A verifier's jobs; `fuse` is the fusion task's mailbox."""
    found: dict[str, list[DraftJob]] = {}
    for job in jobs:
        found.setdefault(job.to, []).append(job)
    return {
        mailbox: ToFuser(jobs=tuple(own)) if mailbox == fuse else ToDrafter(jobs=tuple(own))
        for mailbox, own in found.items()
    }


def trees_by_mailbox(trees: Iterable[tuple[str, TreeMessage]]) -> dict[str, ToVerifier]:
    """Fused trees: a verifier's sequences become ready together, and go into one batch."""
    found: dict[str, list[TreeMessage]] = {}
    for mailbox, tree in trees:
        found.setdefault(mailbox, []).append(tree)
    return {mailbox: ToVerifier(trees=tuple(own)) for mailbox, own in found.items()}


def in_time(jobs: Iterable[DraftJob], now_s: float) -> list[DraftJob]:
    """Without the jobs whose verifier has gone on already: a drafter that lags must not lag for ever."""
    return [job for job in jobs if job.is_last or job.due_s > now_s]
