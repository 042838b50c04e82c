"""Keep a fuser's open rounds, each until it is due or has its drafts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from app.fuser.early_mail import EarlyMail
from app.messages import Draft, DraftJob, TreeMessage
from app.stages.draft.protocol import Context
from app.state import NO_TREE, Tree


@dataclass(slots=True)
class FuseRound:
    job: DraftJob
    context: Context
    drafts: dict[str, Draft]
    tree: Tree = field(default_factory=lambda: NO_TREE)  # of the first `num_fused` of the drafts
    num_fused: int = 0

    def message(self) -> TreeMessage:
        tree = self.tree
        return TreeMessage(
            request_id=self.job.request_id,
            base=self.job.base,
            tokens=tuple(tree.tokens),
            parents=tuple(tree.parents),
            survival=tuple(tree.survival),
            proposers=tuple(tree.proposers),
            confidence=tree.confidence if len(tree.confidence) == len(self.drafts) else self._confidence(),
            reports={name: draft.report for name, draft in self.drafts.items() if draft.report is not None},
        )

    def _confidence(self) -> dict[str, float]:
        known = self.tree.confidence
        means = {name: known.get(name, _confidence(draft)) for name, draft in self.drafts.items()}
        return {name: mean for name, mean in means.items() if mean is not None}


class FuseRounds:
    """Open rounds. None waits for `model_free` drafters, which draft in this process."""

    def __init__(self, model_free: Iterable[str]) -> None:
        self._model_free = frozenset(model_free)
        self._open: dict[str, FuseRound] = {}
        self._early = EarlyMail[Draft]()

    def open(self, job: DraftJob, context: Context) -> None:
        drafts = {draft.drafter: draft for draft in self._early.take(job) if draft.drafter in job.drafters}
        self._open[job.request_id] = FuseRound(job, context, drafts)

    def add(self, draft: Draft) -> None:
        found = self._open.get(draft.request_id)
        if found and found.job.base == draft.base:
            if draft.drafter in found.job.drafters:  # names are kept, and a node may send any
                found.drafts.setdefault(draft.drafter, draft)
        else:
            self._early.keep(draft.drafter, draft)

    def models(self, job: DraftJob) -> set[str]:
        return set(job.drafters) - self._model_free

    def close_ready(self, now_s: float, is_guessed: Callable[[DraftJob], bool]) -> list[FuseRound]:
        """Close the rounds that are complete or due. `is_guessed`: whether a job's shared path is complete."""
        ready = [r for r in self._open.values() if now_s >= r.job.due_s or self._is_complete(r, is_guessed)]
        for closed in ready:
            del self._open[closed.job.request_id]
        return ready

    def close(self, jobs: Iterable[DraftJob]) -> list[FuseRound]:
        """Close the rounds of these jobs, complete or not; a round in place of one stays."""
        found = [r for job in jobs if (r := self._open.get(job.request_id)) is not None and r.job is job]
        for closed in found:
            del self._open[closed.job.request_id]
        return found

    def remove(self, request_id: str) -> None:
        self._open.pop(request_id, None)

    def wait_s(self, now_s: float) -> float | None:
        """None when none is open."""
        return min((max(0.0, r.job.due_s - now_s) for r in self._open.values()), default=None)

    def _is_complete(self, opened: FuseRound, is_guessed: Callable[[DraftJob], bool]) -> bool:
        if opened.job.sharing:
            return is_guessed(opened.job)
        return self.models(opened.job) <= opened.drafts.keys()


def _confidence(draft: Draft) -> float | None:
    """Average a drafter's confidence in its likeliest own token at each depth.

    Drafts are not trusted: what follows a malformed node is not read.
    """
    chances, size = draft.confidences, len(draft.confidences)
    if draft.is_chain and len(draft.parents) == size > 0 and not draft.borrowed:
        mean = sum(chances) / size
        return mean if 0.0 <= mean <= 1.0 else None
    depths, best = [0], dict[int, float]()
    for node, (parent, confidence) in enumerate(zip(draft.parents, draft.confidences, strict=False), start=1):
        if type(parent) is not int or not 0 <= parent < node:
            break
        depths.append(depths[parent] + 1)
        if node not in draft.borrowed:
            best[depths[node]] = max(confidence, best.get(depths[node], confidence))
    mean = sum(best.values()) / len(best) if best else -1.0
    return mean if 0.0 <= mean <= 1.0 else None
