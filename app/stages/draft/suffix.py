"""Guess from past outputs: the tokens that followed the same few in other answers of the same tenant.

Counts of next tokens after the longest known n-gram make a small tree. Tenants share nothing (design D9). TRUST comes
from 600 greedy SmolLM2-135M generations after 300 others: the top token after a known 8-gram came next in 90-93 % of
cases, after a 4-gram in 51-61 %, after a 2-gram in 35-43 %.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from operator import itemgetter

from app.messages import Draft
from app.stages.draft.ngram_tree import Gram, grown
from app.stages.draft.protocol import Context

TRUST = {8: 0.95, 4: 0.7, 2: 0.5}  # n-gram size -> how far its counts are believed; longest first
LONGEST = max(TRUST)
MAX_CHILDREN = 3
MAX_FOLLOWING = 32  # distinct next tokens kept of one n-gram; where more came, none is likely
TOTAL = -1  # in a count table, beside the tokens: all that came, kept or not
Counts = dict[int, int | dict[int, int]]  # n-gram hash -> the one token that came once, or token -> count and TOTAL


class Suffix:
    """Drafter over past outputs. Learns at most `max_tokens` tokens over all tenants."""

    name = "suffix"

    def __init__(self, max_tokens: int = 200_000) -> None:
        self._max_tokens = max_tokens
        self._learnt_tokens = 0
        self._counts: dict[str, Counts] = {}  # by tenant
        self._outputs: OrderedDict[tuple[str, str], _Output] = OrderedDict()

    def draft(self, contexts: Sequence[Context]) -> list[Draft]:
        drafts = (self._draft(context) for context in contexts if context.max_draft_tokens > 0)
        return [draft for draft in drafts if draft is not None]

    def update(self, context: Context) -> None:
        """Learn the new generated tokens; the prompt only gives its last tokens as context."""
        key = (context.tenant, context.request_id)
        output = self._outputs.get(key)
        if output is not None and not output.is_prefix_of(context.tokens):
            self._unlearn(key)
            output = None
        if output is None:
            output = self._outputs[key] = _Output(context.tokens, context.prompt_length)
        self._outputs.move_to_end(key)
        self._learn(context.tenant, output, context.tokens)
        while self._learnt_tokens > self._max_tokens:
            self._unlearn(next(iter(self._outputs)))

    def remove(self, request_id: str) -> None:
        """Keep the finished output, for others."""

    def _draft(self, context: Context) -> Draft | None:
        counts = self._counts.get(context.tenant)
        if not counts or len(context.tokens) < min(TRUST):
            return None
        return grown(self.name, context, partial(_children, counts), LONGEST)

    def _learn(self, tenant: str, output: "_Output", tokens: list[int]) -> None:
        counts = self._counts.setdefault(tenant, {})
        fresh, known, grams = tokens[output.end :], output.tokens, output.grams
        for token in fresh:
            for gram in grams:
                following = counts.get(gram)
                if following is None:  # most n-grams come once: no table for them
                    counts[gram] = token
                else:
                    _add(counts, gram, following, token)
            known.append(token)
            grams = _grams(tuple(known[-LONGEST:]))
        output.grams = grams
        output.end += len(fresh)
        self._learnt_tokens += len(fresh)

    def _unlearn(self, key: tuple[str, str]) -> None:
        output, counts = self._outputs.pop(key), self._counts.get(key[0], {})
        for position in range(output.lead, len(output.tokens)):
            for gram in _grams(tuple(output.tokens[max(0, position - LONGEST) : position])):
                _subtract(counts, gram, output.tokens[position])
        if not counts:
            self._counts.pop(key[0], None)
        self._learnt_tokens -= len(output.tokens) - output.lead


class _Output:
    __slots__ = ("end", "grams", "lead", "tokens")

    def __init__(self, tokens: list[int], prompt_length: int) -> None:
        self.end = min(prompt_length, len(tokens))
        self.tokens = tokens[max(0, self.end - LONGEST) : self.end]
        self.lead = len(self.tokens)
        self.grams = _grams(tuple(self.tokens))  # at the end

    def is_prefix_of(self, tokens: list[int]) -> bool:
        end = min(self.end, len(tokens))
        common = len(self.tokens) - (self.end - end)
        if common <= 0:
            return False
        last = self.tokens[max(0, common - LONGEST) : common]
        return tokens[end - len(last) : end] == last


def _grams(last: Gram) -> list[int]:
    return [hash(last[-size:]) for size in TRUST if len(last) >= size]


def _add(counts: Counts, gram: int, following: int | dict[int, int], token: int) -> None:
    if isinstance(following, int):
        following = counts[gram] = {TOTAL: 1, following: 1}
    following[TOTAL] += 1
    if token in following or len(following) <= MAX_FOLLOWING:
        following[token] = following.get(token, 0) + 1


def _subtract(counts: Counts, gram: int, token: int) -> None:
    following = counts[gram]
    if isinstance(following, int) or following[TOTAL] == 1:
        del counts[gram]
        return
    following[TOTAL] -= 1
    left = following.pop(token, 1) - 1
    if left:
        following[token] = left


def _children(counts: Counts, context: Gram) -> list[tuple[int, float]]:
    """Return the likeliest next tokens after the longest known suffix, with count share times trust."""
    for size, trust in TRUST.items():
        following = counts.get(hash(context[-size:])) if len(context) >= size else None
        if isinstance(following, int):
            return [(following, trust)]
        if following:
            share = trust / following[TOTAL]
            best = sorted(following.items(), key=itemgetter(1), reverse=True)[: MAX_CHILDREN + 1]
            return [(token, share * count) for token, count in best if token != TOTAL][:MAX_CHILDREN]
    return []
