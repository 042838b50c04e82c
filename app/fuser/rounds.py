"""Keep the open rounds of a fuser: each waits, until it is due, for the drafts of the drafters its job names.

Jobs and drafts go in, rounds that are complete or due come out. No tree is made here.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from app.messages import Draft, DraftJob, TreeMessage
from app.stages.draft.protocol import Context
from app.state import NO_TREE, Tree

MAX_EARLY = 512  # rounds for which drafts that overtook their job are kept
MAX_EARLY_EACH = 32  # such drafts of one round


@dataclass(slots=True)
class FuseRound:
    """A job, its context, and the drafts received so far, by drafter."""

    job: DraftJob
    context: Context
    drafts: dict[str, Draft]
    tree: Tree = field(default_factory=lambda: NO_TREE)  # of the first `num_fused` of the drafts
    num_fused: int = 0

    def message(self) -> TreeMessage:
        """Make the message to the verifier: the tree, each drafter's mean confidence, and the nodes' reports."""
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
        """Return each drafter's mean confidence in its draft."""
        known = self.tree.confidence
        means = {name: known.get(name, _confidence(draft)) for name, draft in self.drafts.items()}
        return {name: mean for name, mean in means.items() if mean is not None}


class FuseRounds:
    """The rounds of one fuser. `model_free` drafters draft in this process, so no round waits for them."""

    def __init__(self, model_free: Iterable[str]) -> None:
        self._model_free = frozenset(model_free)
        self._open: dict[str, FuseRound] = {}
        self._early: OrderedDict[tuple[str, int], dict[str, Draft]] = OrderedDict()

    def open(self, job: DraftJob, context: Context) -> None:
        """Open a round, in place of an older one of the same sequence."""
        early = self._early.pop((job.request_id, job.base), None) if self._early else None
        self._open[job.request_id] = FuseRound(job, context, early or {})

    def add(self, draft: Draft) -> None:
        """Add a draft to its round; without an open round, keep it until its job arrives."""
        found = self._open.get(draft.request_id)
        if found and found.job.base == draft.base:
            found.drafts.setdefault(draft.drafter, draft)
            return
        early = self._early.setdefault((draft.request_id, draft.base), {})
        if len(early) < MAX_EARLY_EACH:
            early.setdefault(draft.drafter, draft)
        while len(self._early) > MAX_EARLY:
            self._early.popitem(last=False)

    def models(self, job: DraftJob) -> set[str]:
        """Return the job's drafters that draft elsewhere."""
        return set(job.drafters) - self._model_free

    def close_ready(self, now_s: float, is_guessed: Callable[[DraftJob], bool]) -> list[FuseRound]:
        """Close the rounds that have all their drafts or are due.

        `is_guessed`: whether a job's shared path, which takes the drafts' place, has all its tokens.
        """
        ready = [r for r in self._open.values() if now_s >= r.job.due_s or self._is_complete(r, is_guessed)]
        for closed in ready:
            del self._open[closed.job.request_id]
        return ready

    def remove(self, request_id: str) -> None:
        """Drop the sequence's open round."""
        self._open.pop(request_id, None)

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until a round is due; None when none is open."""
        return min((max(0.0, r.job.due_s - now_s) for r in self._open.values()), default=None)

    def _is_complete(self, opened: FuseRound, is_guessed: Callable[[DraftJob], bool]) -> bool:
        if opened.job.sharing:
            return is_guessed(opened.job)
        return self.models(opened.job) <= opened.drafts.keys()


def _confidence(draft: Draft) -> float | None:
    """Average a drafter's confidence in its likeliest own token at each depth; None where it gives none.

    Tokens that it borrowed are others'. Drafts are not trusted: what follows a malformed node is not read.
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
