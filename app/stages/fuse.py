"""Merge several drafters' guesses into one token tree with a calibrated survival on every node.

Drafts are not trusted: each is cut at its first malformed node, or dropped. Nothing here raises, and
nothing here can change a token (design D1). Below one parent the drafters' calibrated confidences are pooled as odds
(`kernels.cpu.merged_trees` has the formula, and merges a batch in one call). So
  * a lone drafter's calibrated confidences come out unchanged;
  * drafters that agree are a noisy-or with the weaker ones discounted: with AGREEMENT = 1 it would be
    1 - prod(1 - c), wrong only if each of them is wrong, but they read the same text and err together;
  * drafters that disagree weigh on each other, a(1 - b) / (1 - ab): both cannot be right;
  * siblings always sum to less than 1, and a drafter silent at a node weighs on no other.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import isfinite
from operator import le, mul
from typing import NamedTuple

import numpy as np

from app.estimates.calibration import Calibration
from app.messages import TARGET, Draft, DraftJob
from app.state import MAX_NODES, Tree
from kernels.cpu.merged_trees import BORROWED, MAX_SIBLING_MASS, Drafts, merged_trees

MAX_DRAFTS = 32  # looked at for one tree


def fuse(
    rounds: Sequence[tuple[DraftJob, Sequence[Draft]]],
    vocab_size: int,
    calibration: Calibration,
    max_nodes: int = MAX_NODES,
) -> list[Tree]:
    """Merge each job's usable drafts into their likeliest `max_nodes` nodes, by falling survival, parents first."""
    max_nodes = min(max_nodes, MAX_NODES)
    trees: list[Tree] = []
    merging: list[_Weighed] = []
    places: list[int] = []  # of these among the trees
    for job, drafts in rounds:
        guesses = _usable(job, drafts, vocab_size)
        chances = [calibration.values(one.drafter, one.confidences) for one in guesses]
        if len(guesses) == 1 and guesses[0].is_chain:
            trees.append(_chain(guesses[0], chances[0], max_nodes))
            continue
        if guesses:
            merging.append((guesses, chances))
            places.append(len(trees))
        trees.append(Tree())
    for place, tree in zip(places, _merged(merging, max_nodes), strict=True):
        trees[place] = tree
    return trees


def warm_up() -> None:
    """Compile what `fuse` calls, before it is urgent."""
    _merged([([_Guesses("", (0,), (0,), [0.5], is_chain=True)], [[0.5]])], 1)


class _Guesses(NamedTuple):
    """The sound part of a draft."""

    drafter: str
    tokens: Sequence[int]
    parents: Sequence[int]
    confidences: Sequence[float]  # in [0, 1]; BORROWED of the nodes that are other drafters'
    is_chain: bool  # each node hangs on the one before, and is the drafter's own


_Weighed = tuple[Sequence[_Guesses], Sequence[Sequence[float]]]  # a tree's drafts, and the calibrated chances of each


def _usable(job: DraftJob, drafts: Sequence[Draft], vocab_size: int) -> list[_Guesses]:
    """Return the sound parts of the job's drafts; a drafter's second draft is no second opinion."""
    found: dict[str, _Guesses] = {}
    for draft in drafts[:MAX_DRAFTS]:
        if not _is_for(job, draft) or draft.drafter in found:
            continue
        found[draft.drafter] = _sound(draft, vocab_size, job.max_draft_tokens)
    return [*found.values()]


def _sound(draft: Draft, vocab_size: int, max_tokens: int) -> _Guesses:
    """Return a draft up to its first malformed node."""
    if _is_sound(draft, vocab_size, max_tokens):
        confidences: Sequence[float] = draft.confidences
        if min(confidences) < 0.0 or max(confidences) > 1.0:
            confidences = [min(1.0, max(0.0, c)) for c in confidences]
        return _Guesses(draft.drafter, draft.tokens, draft.parents, confidences, draft.is_chain)
    nodes = [*_sound_nodes(draft, vocab_size, max_tokens)]
    tokens, parents, confidences = zip(*nodes, strict=True) if nodes else ((), (), ())
    return _Guesses(draft.drafter, tokens, parents, confidences, is_chain=False)


def _is_sound(draft: Draft, vocab_size: int, max_tokens: int) -> bool:
    """Tell whether all of a draft is sound and none of it borrowed, as most drafts are.

    Of such a draft `_sound_nodes` yields every node; this asks once a field, not once a node.
    """
    tokens, parents, chances = draft.tokens, draft.parents, draft.confidences
    if not (type(tokens) is type(parents) is type(chances) is tuple) or draft.borrowed:
        return False
    return (
        0 < len(tokens) == len(parents) == len(chances) <= max_tokens
        and {*map(type, tokens), *map(type, parents)} == {int}
        and {*map(type, chances)} == {float}
        and min(tokens) >= 0
        and max(tokens) < vocab_size
        and min(parents) >= 0
        and all(map(le, parents, range(len(parents))))
        and isfinite(sum(chances))
    )


def _is_for(job: DraftJob, draft: Draft) -> bool:
    """Check that a draft names this sequence at this length; its own claims are all there is to compare."""
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


def _chain(guesses: _Guesses, chances: Sequence[float], max_nodes: int) -> Tree:
    """Make the tree of a lone drafter's chain: as `_merged` would, with nothing to pool and no order."""
    shares = [MAX_SIBLING_MASS if chance > MAX_SIBLING_MASS else chance for chance in chances[:max_nodes]]
    size = len(shares)
    return Tree([*guesses.tokens[:size]], [*range(size)], [*accumulate(shares, mul)], [(guesses.drafter,)] * size)


def _merged(batch: Sequence[_Weighed], max_nodes: int) -> list[Tree]:
    """Merge the drafts of each tree."""
    if not batch:
        return []
    tokens: list[int] = []
    parents: list[int] = []
    raw: list[float] = []
    weighed: list[float] = []
    ranks: list[int] = []
    nodes, drafts = [0], [0]  # where each draft's nodes end, and each tree's drafts
    for guesses, own in batch:
        names = sorted(one.drafter for one in guesses)
        for one, chances in zip(guesses, own, strict=True):
            tokens += one.tokens
            parents += one.parents
            raw += one.confidences
            weighed += chances
            ranks.append(names.index(one.drafter))
            nodes.append(len(tokens))
        drafts.append(len(ranks))
    given = Drafts(
        np.array(tokens, np.int64),
        np.array(parents, np.int64),
        np.where(np.array(raw) == BORROWED, BORROWED, weighed),
        np.array(nodes),
        np.array(ranks),
        np.array(drafts),
    )
    ends, places = np.empty(len(batch), np.int64), np.empty((nodes[-1], 3), np.int64)
    proposers = np.empty(nodes[-1], np.int64)
    survivals = merged_trees(given, max_nodes, ends, places, proposers)
    tokens, parents, named = places.T.tolist()
    survival, by = survivals.tolist(), proposers.tolist()
    trees: list[Tree] = []
    begun = first = 0
    for (guesses, _), end in zip(batch, ends.tolist(), strict=True):
        alone = [(one.drafter,) for one in guesses]
        proposed: list[tuple[str, ...]] = []
        for last in named[begun:end]:
            proposed.append(
                alone[by[first]] if last - first == 1 else tuple(guesses[i].drafter for i in by[first:last])
            )
            first = last
        trees.append(Tree(tokens[begun:end], parents[begun:end], survival[begun:end], proposed))
        begun = end
    return trees
