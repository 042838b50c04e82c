"""Turn a verdict into the event that commits it.

The store appends the event by compare-and-set on its offset; before that nothing is committed.
"""

from typing import Final

import msgspec

from app.messages import DrafterCounts, Event, FinishReason, Rejected, Stats
from app.state import Sequence, Tree, Verdict

NO_COUNTS: Final = DrafterCounts()


class Conclusion(msgspec.Struct, frozen=True, gc=False):
    """The tokens of a verdict that count, behind `offset` generated ones, and why the request ends with them, if it
    does.
    """

    offset: int
    tokens: list[int]
    finish_reason: FinishReason | None


def conclude(sequence: Sequence, verdict: Verdict) -> Conclusion:
    """End a request at an end-of-sequence token, at max_tokens, or at the token that completes a stop string."""
    record, offset = sequence.record, sequence.generated
    room = record.max_tokens - offset
    tokens, reason = verdict.tokens, None
    if record.eos_ids and not set(record.eos_ids).isdisjoint(tokens[:room]):
        end = next(i for i, token in enumerate(tokens) if token in record.eos_ids)
        tokens, reason = tokens[: end + 1], FinishReason.STOP
    elif len(tokens) >= room:
        tokens, reason = tokens[:room], FinishReason.LENGTH
    if sequence.stops is not None:
        start = len(record.prompt_ids)
        stop = sequence.stops.first(sequence.tokens, start, tokens, is_end=reason is not None)
        if stop is not None:
            tokens, reason = tokens[: stop + 1], FinishReason.STOP
    if reason is None and verdict.error is not None:
        reason = FinishReason.ERROR
    return Conclusion(offset, tokens, reason)


def event_of(
    conclusion: Conclusion, stats: Stats, tree: Tree, verdict: Verdict, now_s: float, *, with_rejected: bool = False
) -> Event:
    """Return the event of a verdict on `tree`, as it was verified. `stats`: the request's before it. `now_s`: wall
    clock.
    """
    tokens, reason = conclusion.tokens, conclusion.finish_reason
    return Event(
        offset=conclusion.offset,
        tokens=tuple(tokens),
        proposers=tuple(verdict.proposers(tree)[: len(tokens)]),
        rejected=_rejected(tree, verdict.path, tokens) if with_rejected else (),
        logprobs=tuple(verdict.logprobs[: len(tokens)]),
        finish_reason=reason,
        error=verdict.error if reason is FinishReason.ERROR else None,
        stats=_stats(stats, tree, verdict.path[: len(tokens)], now_s),
    )


def _rejected(tree: Tree, accepted: list[int], tokens: list[int]) -> tuple[Rejected, ...]:
    """Return each wrong branch where it leaves the accepted nodes, along its likeliest nodes."""
    places = {node: place for place, node in enumerate([0, *accepted])}
    branches: dict[int, list[int]] = {}  # by their last node
    for node, parent in enumerate(tree.parents, start=1):
        if node in places:
            continue
        if parent in branches:
            branches[node] = [*branches.pop(parent), node]
        elif parent in places and places[parent] < len(tokens) and tree.tokens[node - 1] != tokens[places[parent]]:
            branches[node] = [node]
    return tuple(
        Rejected(
            place=places[tree.parents[first - 1]],
            drafter=tree.proposers[first - 1][0],
            tokens=tuple(tree.tokens[node - 1] for node in (first, *rest)),
        )
        for first, *rest in branches.values()
    )


def _stats(stats: Stats, tree: Tree, accepted: list[int], now_s: float) -> Stats:
    by_drafter = dict(stats.by_drafter)
    for name, (drafted, right) in tree.by_proposer(accepted).items():
        old = by_drafter.get(name, NO_COUNTS)
        by_drafter[name] = DrafterCounts(drafted=old.drafted + drafted, accepted=old.accepted + right)
    return Stats(
        rounds=stats.rounds + 1,
        drafted=stats.drafted + len(tree.tokens),
        accepted=stats.accepted + len(accepted),
        by_drafter=by_drafter,
        first_token_s=now_s if stats.first_token_s is None else stats.first_token_s,
        last_token_s=now_s,
        reused=stats.reused,
    )
