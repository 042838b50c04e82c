"""Merge several drafters' guesses into one token tree with a calibrated survival on every node.

Drafts are not trusted: each is cut at its first malformed node, or dropped. Nothing here raises, and
nothing here can change a token (design D1). Below one parent the drafters' calibrated confidences are pooled as odds.
With o = c / (1 - sum of that drafter's c's here), a token gets the odds
    O = (1 + strongest o) * prod(1 + other o) ** AGREEMENT - 1
and the probability O / (1 + sum of all siblings' O). So
  * a lone drafter's calibrated confidences come out unchanged;
  * drafters that agree are a noisy-or with the weaker ones discounted: with AGREEMENT = 1 it would be
    1 - prod(1 - c), wrong only if each of them is wrong, but they read the same text and err together;
  * drafters that disagree weigh on each other, a(1 - b) / (1 - ab): both cannot be right;
  * siblings always sum to less than 1, and a drafter silent at a node weighs on no other.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import isfinite, prod
from operator import le, mul

from app.estimates.calibration import Calibration
from app.messages import TARGET, Draft, DraftJob
from app.state import MAX_NODES, Tree

# Where lookup and suffix agreed, over 500 SmolLM2 generations, 0.3 to 0.55 foretold the share that was right;
# 1 foretold too much (0.85 for 0.72, 0.985 for 0.935).
AGREEMENT = 0.35
MAX_DRAFTS = 32  # looked at for one tree
MAX_ODDS = 1e6  # of a token, however many agree
MAX_SIBLING_MASS = 0.999  # of one drafter below one parent: something else is always possible


def fuse(
    job: DraftJob,
    drafts: Sequence[Draft],
    vocab_size: int,
    calibration: Calibration,
    max_nodes: int = MAX_NODES,
) -> Tree:
    """Merge all usable drafts into their likeliest `max_nodes` nodes: a tree by falling survival, parents first."""
    usable: dict[str, Draft] = {}
    for draft in drafts[:MAX_DRAFTS]:
        if _is_for(job, draft):
            usable.setdefault(draft.drafter, draft)  # a repeated draft is no second opinion
    max_nodes, root = min(max_nodes, MAX_NODES), _Node()
    for name, draft in usable.items():
        is_sound = _is_sound(draft, vocab_size, job.max_draft_tokens)
        if is_sound and len(usable) == 1 and draft.is_chain:
            return _chain(name, draft.tokens[:max_nodes], draft.confidences, calibration)
        nodes = _nodes(draft) if is_sound else [*_sound_nodes(draft, vocab_size, job.max_draft_tokens)]
        _merge(root, name, nodes, calibration)
    return _best(root, max_nodes)


_Guess = tuple[int, int, float | None]  # token, parent, confidence in [0, 1]; None: borrowed


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
        and all(map(isfinite, chances))
    )


def _nodes(draft: Draft) -> list[_Guess]:
    """List the nodes of a draft that is sound."""
    return [*zip(draft.tokens, draft.parents, _clamped(draft.confidences), strict=True)]


def _clamped(confidences: Iterable[float]) -> list[float]:
    """Bring confidences into [0, 1]."""
    return [0.0 if c < 0.0 else 1.0 if c > 1.0 else c for c in confidences]


def _chain(drafter: str, tokens: Sequence[int], confidences: Sequence[float], calibration: Calibration) -> Tree:
    """Make the tree of a lone drafter's chain: as `_merge` and `_best` would, with nothing to pool and no order."""
    size = len(tokens)
    shares = calibration.values(drafter, _clamped(confidences[:size]))
    survival = [*accumulate([min(MAX_SIBLING_MASS, share) for share in shares], mul)]
    return Tree([*tokens], [*range(size)], survival, [(drafter,)] * size)


class _Node:
    """A token in the merged tree; `confidence` is each drafter's own in it, calibrated, given its parent."""

    __slots__ = ("children", "confidence")

    def __init__(self) -> None:
        self.confidence: dict[str, float] = {}
        self.children: dict[int, _Node] = {}


def _is_for(job: DraftJob, draft: Draft) -> bool:
    """Check that a draft names this sequence at this length; its own claims are all there is to compare."""
    is_named = isinstance(draft.drafter, str) and draft.drafter not in ("", TARGET)
    return is_named and draft.request_id == job.request_id and draft.base == job.base


def _sound_nodes(draft: Draft, vocab_size: int, max_tokens: int) -> Iterator[_Guess]:
    """Yield (token, parent, confidence in [0, 1]) up to the first malformed node; no confidence in a borrowed one."""
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
        yield token, parent, None if i + 1 in borrowed else min(1.0, max(0.0, confidence))


def _merge(root: _Node, drafter: str, nodes: Sequence[_Guess], calibration: Calibration) -> None:
    """Add one drafter's nodes; a token it repeats below the same parent counts once, at its best."""
    placed = [root]
    chances = iter(calibration.values(drafter, [own for _, _, own in nodes if own is not None]))
    for token, parent, own in nodes:
        siblings = placed[parent].children
        node = siblings.get(token)
        if node is None:
            node = siblings[token] = _Node()
        if own is not None:
            chance = next(chances)
            if chance > node.confidence.get(drafter, 0.0):
                node.confidence[drafter] = chance
        placed.append(node)


def _best(root: _Node, max_nodes: int) -> Tree:
    """Take the likeliest open node next, so that survival falls and parents come before children."""
    tokens: list[int] = []
    parents: list[int] = []
    survivals: list[float] = []
    proposers: list[tuple[str, ...]] = []
    order = 0  # of opening: keeps ties deterministic and nodes uncompared
    # -survival, order of opening, parent, token, node
    open_nodes: list[tuple[float, int, int, int, _Node]] = []
    node, index, survival = root, 0, 1.0
    while True:
        for token, child, probability in _probabilities(node):
            heappush(open_nodes, (-survival * probability, order, index, token, child))
            order += 1
        if not open_nodes or index >= max_nodes:
            return Tree(tokens, parents, survivals, proposers)
        negative, _, parent, token, node = heappop(open_nodes)
        index, survival = index + 1, -negative
        tokens.append(token)
        parents.append(parent)
        survivals.append(survival)
        own = node.confidence
        proposers.append(
            (*own,) if len(own) == 1 else tuple(name for _, name in sorted((-c, n) for n, c in own.items()))
        )


def _probabilities(parent: _Node) -> list[tuple[int, _Node, float]]:
    """Pool the children's confidences as odds (the formula above): each child, and its probability given the parent."""
    # A token that all drafters borrowed and none guessed is no guess, and nothing below it is.
    children = [(token, child) for token, child in parent.children.items() if child.confidence]
    if not children:
        return []
    if len(children) == 1:  # most nodes: one token,
        token, child = children[0]
        if len(child.confidence) == 1:  # of one drafter
            return [(token, child, min(MAX_SIBLING_MASS, *child.confidence.values()))]
    mass: dict[str, float] = {}
    for _, child in children:
        for drafter, own in child.confidence.items():
            mass[drafter] = mass.get(drafter, 0.0) + own
    scale = {drafter: min(1.0, MAX_SIBLING_MASS / total) for drafter, total in mass.items()}
    odds: list[float] = []
    for _, child in children:
        factors = [1.0 + c * scale[name] / (1.0 - mass[name] * scale[name]) for name, c in child.confidence.items()]
        strongest = max(factors)
        odds.append(min(MAX_ODDS, strongest * (prod(factors) / strongest) ** AGREEMENT - 1.0))
    total_odds = 1.0 + sum(odds)
    return [(token, child, own / total_odds) for (token, child), own in zip(children, odds, strict=True)]
