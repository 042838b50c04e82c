"""Make drafts of the steps of a path, and name what is common to paths and trees."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.messages import Draft
from app.state import Guess

MIN_SECOND = 0.15  # least confidence of a second-best guess off the path


@dataclass(slots=True, eq=False)
class DraftPart:
    """A drafter's part of a batch of jobs. Who marks it done before it is ends it without drafts."""

    drafts: list[Draft] = field(default_factory=list)  # once it is done
    levels: int = 0  # guesses so far, one after the other; those guessed ahead are left out
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class DraftStep:
    """One token of a path, and every drafter's guess in its place."""

    token: int
    confidence: float
    guesses: dict[str, Guess]  # by drafter


def own_steps(name: str, guesses: Iterable[Guess]) -> list[DraftStep]:
    return [DraftStep(guess.token, guess.confidence, {name: guess}) for guess in guesses]


def fused_step(guesses: Mapping[str, Guess]) -> DraftStep:
    """Make the step of the most confident drafter (CoSine, papers 1.3); a tie goes to the first."""
    best = max(guesses.values(), key=lambda guess: guess.confidence)
    return DraftStep(best.token, best.confidence, dict(guesses))


def drafts_of(request_id: str, base: int, steps: list[DraftStep], *, has_leaves: bool = True) -> list[Draft]:
    names = dict.fromkeys(name for step in steps for name in step.guesses)
    return [_draft(request_id, base, name, steps, has_leaves) for name in names]


@dataclass(slots=True)
class _Node:
    survival: float
    depth: int
    token: int
    confidence: float
    is_leaf: bool = False
    is_borrowed: bool = False


def _draft(request_id: str, base: int, name: str, steps: list[DraftStep], has_leaves: bool) -> Draft:
    nodes: list[_Node] = []
    survival, used = 1.0, 0
    for depth, step in enumerate(steps, start=1):
        own = _own_nodes(step, name, depth, survival, has_leaves)
        used = depth if own else used
        survival *= step.confidence
        if all(node.is_leaf for node in own):
            own.append(_Node(survival, depth, step.token, 0.0, is_borrowed=True))
        nodes += own
    # Of equals the path goes first, so the first child of a node is the one that all drafters go on from.
    nodes = sorted((n for n in nodes if n.depth <= used), key=lambda n: (-n.survival, n.depth, n.is_leaf))
    nodes = [n for n in nodes if not n.is_borrowed or _is_needed(n, nodes)]
    places = {0: 0} | {n.depth: i for i, n in enumerate(nodes, start=1) if not n.is_leaf}
    return Draft(
        request_id=request_id,
        base=base,
        drafter=name,
        tokens=tuple(n.token for n in nodes),
        parents=tuple(places[n.depth - 1] for n in nodes),
        confidences=tuple(min(1.0, max(0.0, n.confidence)) for n in nodes),
        borrowed=tuple(i for i, n in enumerate(nodes, start=1) if n.is_borrowed),
    )


def _own_nodes(step: DraftStep, name: str, depth: int, survival: float, has_leaves: bool) -> list[_Node]:
    guess = step.guesses.get(name)
    if guess is None:
        return []
    own = [(guess.token, guess.confidence)]
    # A second best that is on the path costs no row of its own, so its chance does not matter.
    is_likely = has_leaves and guess.second_confidence >= MIN_SECOND
    if is_likely or guess.second == step.token != guess.token:
        own.append((guess.second, guess.second_confidence))
    below = survival * step.confidence  # a leaf never counts for more than the path beside it
    return [
        _Node(below, depth, token, confidence)
        if token == step.token
        else _Node(min(below, survival * confidence), depth, token, confidence, is_leaf=True)
        for token, confidence in dict(reversed(own)).items()
    ]


def _is_needed(node: _Node, nodes: list[_Node]) -> bool:
    return any(n.depth > node.depth and not n.is_borrowed for n in nodes)
