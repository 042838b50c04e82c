"""Grow a small tree of guesses, the likeliest first, for drafters that look n-grams up."""

from collections.abc import Callable
from heapq import heappop, heappush

from app.messages import Draft
from app.stages.draft.protocol import Context, draft_of

MIN_SURVIVAL = 0.03  # below it a guess is not worth a row of any verifier
Gram = tuple[int, ...]
Children = Callable[[Gram], list[tuple[int, float]]]  # (token, confidence) of what may come after a context


def grown(name: str, context: Context, children: Children, longest: int) -> Draft | None:
    tokens, parents, confidences = grow(children, tuple(context.tokens[-longest:]), context.max_draft_tokens, longest)
    return draft_of(name, context, tokens, parents, confidences) if tokens else None


def grow(children: Children, context: Gram, max_tokens: int, longest: int) -> tuple[list[int], list[int], list[float]]:
    """Return (tokens, parents, confidences) of the `max_tokens` likeliest nodes: always open the likeliest leaf next.

    `context` has the last tokens, `longest` at most, as do the contexts that `children` gets.
    """
    tokens: list[int] = []
    parents: list[int] = []
    confidences: list[float] = []
    heap: list[tuple[float, int, int, float, Gram]] = []  # -survival, parent, token, confidence, parent's context
    survival = 1.0
    while len(tokens) < max_tokens:
        for token, confidence in children(context):
            if survival * confidence >= MIN_SURVIVAL:
                heappush(heap, (-survival * confidence, len(tokens), token, confidence, context))
        if not heap:
            break
        negative, parent, token, confidence, context = heappop(heap)
        tokens.append(token)
        parents.append(parent)
        confidences.append(confidence)
        survival, context = -negative, (*context[-longest + 1 :], token)
    return tokens, parents, confidences
