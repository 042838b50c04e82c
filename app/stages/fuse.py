"""Merge several drafters' guesses into one token tree with a survival on every node.

Drafts are not trusted: each is cut at its first malformed node, or dropped. Nothing here raises or changes a token
(design D1). Below one parent the confidences are pooled as odds (formula: `kernels.host.merged_trees`). So
  * a lone drafter's come out unchanged;
  * drafters that agree are a noisy-or with the weaker ones discounted, since they read the same text and err
    together; with AGREEMENT = 1 it would be 1 - prod(1 - c);
  * drafters that disagree lower each other's to a(1 - b) / (1 - ab);
  * siblings sum to less than 1, and a drafter without a guess changes no other's.
"""

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np

from app.messages import TARGET, Draft, DraftJob
from app.state import MAX_NODES, Tree
from kernels.host.fused_trees import FusedTrees, RawDrafts, fused_trees, room_for_trees
from kernels.host.merged_trees import BORROWED

MAX_DRAFTS = 32  # looked at for one tree
Round = tuple[DraftJob, Sequence[Draft]]


def fuse(rounds: Sequence[Round], vocab_size: int, max_nodes: int = MAX_NODES) -> list[Tree]:
    """Merge each job's usable drafts into their likeliest `max_nodes` nodes, by falling survival, parents first."""
    if not rounds:
        return []
    gathered = _gathered(rounds, vocab_size, are_sound=True)
    merged = gathered.has_numbers() and _merged(gathered, vocab_size, max_nodes)
    if not merged:
        gathered = _gathered(rounds, vocab_size, are_sound=False)
        merged = _merged(gathered, vocab_size, max_nodes)
        assert merged, "what is not sound was left out"
    return _trees(gathered, merged)


def warm_up() -> None:
    _merged(_Gathered([], [], [], [], [], [], []), 1, 1)


class _Gathered(NamedTuple):
    tokens: list[int]
    parents: list[int]
    confidences: list[float]  # BORROWED of the nodes that are other drafters'
    ends: list[int]  # of each draft's nodes
    names: list[str]  # of each draft's drafter
    checked: list[bool]  # drafts of which each node was looked at, and which may borrow
    trees: list[int]  # where each tree's drafts end

    def has_numbers(self) -> bool:
        return {*map(type, self.tokens), *map(type, self.parents)} <= {int} and {*map(type, self.confidences)} <= {
            float
        }


def _gathered(rounds: Sequence[Round], vocab_size: int, *, are_sound: bool) -> _Gathered:
    """Gather the jobs' drafts, one of each drafter.

    With `are_sound` those that look sound are taken whole, for the kernel to check; else each node is checked.
    """
    found = _Gathered([], [], [], [], [], [], [])
    tokens, parents, confidences, ends, names, checked, trees = found
    for job, drafts in rounds:
        begun, most = len(names), job.max_nodes or job.max_draft_tokens
        for draft in drafts[:MAX_DRAFTS]:
            if not _is_for(job, draft) or draft.drafter in names[begun:]:
                continue
            looks_sound = are_sound and _looks_sound(draft, most)
            if looks_sound:
                tokens += draft.tokens
                parents += draft.parents
                confidences += draft.confidences
            else:
                for token, parent, confidence in _sound_nodes(draft, vocab_size, most):
                    tokens.append(token)
                    parents.append(parent)
                    confidences.append(confidence)
            ends.append(len(tokens))
            names.append(draft.drafter)
            checked.append(not looks_sound)
        trees.append(len(names))
    return found


def _looks_sound(draft: Draft, max_tokens: int) -> bool:
    tokens, parents, confidences = draft.tokens, draft.parents, draft.confidences
    return (
        type(tokens) is type(parents) is type(confidences) is tuple
        and 0 < len(tokens) == len(parents) == len(confidences) <= max_tokens
        and not draft.borrowed
    )


def _is_for(job: DraftJob, draft: Draft) -> bool:
    is_named = isinstance(draft.drafter, str) and draft.drafter not in ("", TARGET)
    return is_named and draft.request_id == job.request_id and draft.base == job.base


def _sound_nodes(draft: Draft, vocab_size: int, max_tokens: int) -> Iterator[tuple[int, int, float]]:
    """Yield (token, parent, confidence in [0, 1], or BORROWED) up to the first malformed node."""
    fields = (draft.tokens, draft.parents, draft.confidences)
    if not all(isinstance(values, tuple | list) for values in (*fields, draft.borrowed)):
        return
    borrowed, own = draft.borrowed[:max_tokens], 0
    nodes = zip(*(values[: 2 * max_tokens] for values in fields), strict=False)
    for i, (token, parent, confidence) in enumerate(nodes):
        own += i + 1 not in borrowed
        if own > max_tokens:
            return
        if type(token) is not int or not 0 <= token < vocab_size:
            return
        if type(parent) is not int or not 0 <= parent <= i:
            return
        if type(confidence) is not int and not (type(confidence) is float and isfinite(confidence)):
            return
        yield token, parent, BORROWED if i + 1 in borrowed else min(1.0, max(0.0, confidence))


def _merged(gathered: _Gathered, vocab_size: int, max_nodes: int) -> FusedTrees | None:
    """Merge drafts; None if one that was taken whole is not sound."""
    names = sorted({*gathered.names})
    ranks = {name: rank for rank, name in enumerate(names)}
    drafts = [gathered.ends, [ranks[name] for name in gathered.names], gathered.checked]
    try:
        nodes = np.array([gathered.tokens, gathered.parents], np.int64)
    except OverflowError:
        return None
    confidences, trees = np.array(gathered.confidences, np.float64), np.array(gathered.trees, np.int64)
    given = RawDrafts(nodes, confidences, np.array(drafts, np.int64), trees)
    out = room_for_trees(given)
    return out if fused_trees(given, vocab_size, min(max_nodes, MAX_NODES), out) else None


def _trees(gathered: _Gathered, merged: FusedTrees) -> list[Tree]:
    ends = merged.ends.tolist()
    places, survival = merged.places[: ends[-1]].T.tolist(), merged.survivals[: ends[-1]].tolist()
    tokens, parents, named = places
    by, means = merged.proposers.tolist(), merged.means.tolist()
    alone = {name: (name,) for name in gathered.names}
    trees: list[Tree] = []
    begun = first = first_draft = 0
    for end, last_draft in zip(ends, gathered.trees, strict=True):
        names = gathered.names[first_draft:last_draft]
        proposers: list[tuple[str, ...]]
        if last_draft - first_draft == 1:
            proposers, first = [alone[names[0]]] * (end - begun), first + end - begun
        else:
            proposers = []
            for last in named[begun:end]:
                proposers.append(
                    alone[names[by[first]]] if last - first == 1 else tuple([names[i] for i in by[first:last]])
                )
                first = last
        confidence = {
            name: mean
            for name, mean, is_checked in zip(
                names, means[first_draft:last_draft], gathered.checked[first_draft:last_draft], strict=True
            )
            if not is_checked
        }
        trees.append(Tree(tokens[begun:end], parents[begun:end], survival[begun:end], proposers, confidence))
        begun, first_draft = end, last_draft
    return trees
