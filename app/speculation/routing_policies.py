"""Choose the verifier that holds a request's KV cache, and the drafters that guess for it.

Pure functions: estimates come in, a choice goes out. Of equals the first one is chosen.
"""

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from math import ceil

from app.state import Tree
from app.store.protocol import Node

SHORT = 2.0  # a recent accepted length, the target's own token included, below which others are tried
CURIOSITY = 1.0  # standard deviations of doubt that count for a drafter while others are tried
MIN_GAIN = 0.06  # tokens a round that one more drafter must bring: its drafts are verified, too
SURE = 0.98  # nothing is more certain
NEW_SHARE = 0.5  # CoSine's alpha, of drafters little tried while exploring; its value is not known
BEST_SHARE = 0.8  # CoSine's beta, of the best ones while exploiting


def verifier(live: Listed[Node], held: Mapping[str, int]) -> Node | None:
    """Choose the verifier that holds the fewest requests, by owner; None when none is alive.

    Heartbeats are no measure of it: they are half a second old, and a burst would all go to one
    verifier.
    """
    return min(live, key=lambda node: (held.get(node.owner, 0), node.name), default=None)


def serving(live: Listed[Node], tokenizer_sha256: str, target: str = "") -> list[Node]:
    """List the verifiers that read this tokenizer's ids, and verify with the target of this id, if one is given.

    A verifier of another version may name neither: it can begin a request and go on with none.
    """
    return [
        node
        for node in live
        if node.info.get("tokenizer", tokenizer_sha256) == tokenizer_sha256
        and (not target or node.info.get("target", "") == target)
    ]


def hosts(live: Listed[Node], tokenizer_sha256: str) -> dict[str, tuple[str, ...]]:
    """Return, by drafter, the mailboxes of the live nodes that host it, the least busy first.

    Nodes whose tokenizer is not the target's are left out.
    """
    found: dict[str, tuple[str, ...]] = {}
    for node in sorted(live, key=lambda node: (node.info.get("waiting", 0), node.name)):
        if node.info.get("tokenizer") == tokenizer_sha256:
            for name in dict.fromkeys(node.info.get("drafters", ())):
                found[name] = (*found.get(name, ()), f"{node.kind}:{node.name}")
    return found


@dataclass(frozen=True, slots=True)
class Option:
    """A drafter that may be asked, as a routing rule sees it."""

    drafter: str
    acceptance: float  # the chance that its next token is right if all before it were
    doubt: float = 0.0  # standard deviation of that chance
    price: float = 0.0  # tokens of plain decoding that waiting for it, and its reading, take
    is_here: bool = False  # on the verifier's own cores
    match: float = 0.5  # its entry in CoSine's routing matrix
    rounds: int = 0  # in which it was asked
    is_expected: bool = False  # `acceptance` rests on enough requests

    def tokens(self, depth: int, acceptance: float | None = None) -> float:
        """Return the expected right tokens of a draft of `depth`."""
        p = min(SURE, self.acceptance if acceptance is None else acceptance)
        return p * (1.0 - p**depth) / (1.0 - p)


def is_short(accepted_length: float | None) -> bool:
    """Tell whether it is time to explore; nothing accepted yet is short."""
    return accepted_length is None or accepted_length < SHORT


def learned(
    options: Listed[Option], depth: int, most: int, *, is_exploring: bool, least_gain: float = MIN_GAIN
) -> list[str]:
    """Choose the drafter of the highest expected gain less price; then others that add `least_gain`.

    While exploring, doubt counts for a drafter: it is asked unless it is known to be worse. An expert has
    a low mean over all requests, and would else not be asked on those of its domain either. One more
    drafter adds the tokens that it gets right where those before it are wrong (`added_tokens`, by their means); the
    one that adds most is next. None is added on the verifier's own cores, where drafting is not free.
    """
    if not options:
        return []

    def hoped(option: Option) -> float:
        return option.acceptance + CURIOSITY * option.doubt if is_exploring else option.acceptance

    first = max(options, key=lambda option: option.tokens(depth, hoped(option)) - option.price)
    chosen, missed = [first.drafter], misses(first.acceptance, depth)
    others = [option for option in options if option is not first and not option.is_here]
    while others and len(chosen) < most:
        gains = [added_tokens(hoped(option), missed) - option.price for option in others]
        if max(gains) < least_gain:
            break
        option = others.pop(gains.index(max(gains)))
        chosen.append(option.drafter)
        missed = [a * b for a, b in zip(missed, misses(option.acceptance, depth), strict=True)]
    return chosen


def misses(acceptance: float, depth: int) -> list[float]:
    """Return by depth, from 1, the chance that a drafter of this acceptance is not right so far down."""
    return [1.0 - min(SURE, acceptance) ** level for level in range(1, depth + 1)]


def added_tokens(acceptance: float, missed: Listed[float]) -> float:
    """Return the right tokens that one more drafter adds to others, if drafters are wrong independently.

    The union of drafts is right as far as its best one, so it adds sum_k p^k x the chance that the
    others are right for less than k tokens, `missed`.
    """
    added, survival = 0.0, 1.0
    for miss in missed:
        survival *= min(SURE, acceptance)
        added += survival * miss
    return added


def cosine(options: Listed[Option], most: int, *, is_exploring: bool) -> list[str]:
    """Choose as CoSine does (papers 1.2, reconstructed).

    A share of `most` goes to the best scores, the rest to those least tried. While exploring, the
    larger share goes to those little tried.
    """
    by_match = sorted(options, key=lambda option: -option.match)
    by_rounds = sorted(options, key=lambda option: option.rounds)
    first, then = (by_rounds, by_match) if is_exploring else (by_match, by_rounds)
    share = ceil((NEW_SHARE if is_exploring else BEST_SHARE) * most)
    chosen = first[:share]
    chosen += [option for option in then if option not in chosen][: max(0, most - len(chosen))]
    return [option.drafter for option in chosen]


def outcomes(tree: Tree, committed: Listed[int], asked: Collection[str]) -> tuple[dict[str, tuple[int, int]], int]:
    """Count (draft tokens right, draft tokens tried) of each drafter asked, and the length of the tree's right path.

    `committed` are the tokens after the tree's root. A drafter is right as long as it is among the
    proposers of the right path; the first place at which it proposed other tokens counts as tried.
    A draft that ended earlier shows nothing more, unless it was empty: silent or too late counts as
    wrong.
    """
    found: dict[str, tuple[int, int]] = {}
    walk, going_on = tree.walk(committed), set(asked)
    for depth, alternatives in enumerate(walk.alternatives):
        is_right = depth < len(walk.path)
        agreeing = going_on.intersection(tree.proposers[walk.path[depth] - 1]) if is_right else set()
        speaking = {name for node in alternatives for name in tree.proposers[node - 1]}
        for name in going_on - agreeing:
            found[name] = (depth, depth + int(name in speaking or depth == 0))
        going_on = agreeing
    found.update(dict.fromkeys(going_on, (len(committed), len(committed))))
    return found, len(walk.path)


def guesses(tree: Tree, drafter: str, depth: int) -> dict[int, int]:
    """Return a drafter's likeliest token at each position after the root, from 0, below `depth`.

    CoSine compares them with the committed ones position by position (papers 1.2), also behind a wrong
    one, and behind a token of another drafter that all went on from.
    """
    found: dict[int, tuple[float, int]] = {}
    for place, token, survival, names in zip(
        tree.depths()[1:], tree.tokens, tree.survival, tree.proposers, strict=True
    ):
        if drafter in names and place <= depth and survival > found.get(place - 1, (-1.0, 0))[0]:
            found[place - 1] = survival, token
    return {place: token for place, (_, token) in sorted(found.items())}
