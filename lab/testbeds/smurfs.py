"""Draft as Smurfs does (SC '25; Minions, arXiv:2402.15678): several small models vote, and the length climbs.

    w(node) = sum of the weights of the drafters whose own drafts pass through it
    verified: the root path of the largest sum of w over its nodes
    length:   goes on in its direction while seconds of verifying / committed tokens fall, else turns round

A drafter's weight is multiplied by RIGHT where its first token was right and by WRONG where it was wrong. The third
part, a pool of drafts, is a variant of the arm: one half of the requests drafts while the other half is verified.
Assumed: the factors, the rounds that a length is tried for, its bounds, and that each request has weights of its own,
so that the expert of its domain wins, which favours Smurfs.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Listed
from typing import Final

from msgspec import structs

from app.engine.step_costs import StepCosts
from app.messages import TreeMessage
from app.speculation.draft_costs import DraftCosts
from app.speculation.marginal import Candidate
from lab.simulate.log import Text
from lab.simulate.models import text_of

RIGHT, WRONG = 1.1, 0.9  # factors of a weight
FIRST, MOST = 4, 8  # draft tokens
PAUSE, TRIED = 2, 8  # decisions after a change that are not counted, and those that are


class Vote:
    """Reduces the union of all drafts to the path of the most weight."""

    def __init__(self, texts: Listed[Text]) -> None:
        """Learn from the target's texts, up to what is verified when a request's next drafts are fused."""
        self._texts = texts
        self._weights: dict[str, dict[str, float]] = {}  # by request, by drafter
        self._firsts: dict[str, tuple[int, dict[str, int]]] = {}  # the last round's base, and each one's first token

    def __call__(self, tree: TreeMessage) -> TreeMessage:
        """Return the tree's heaviest root path; its proposers stay those whose drafts pass through it."""
        weights = self._weights.setdefault(tree.request_id, {})
        self._learn(tree.request_id, tree.base, weights)
        firsts: dict[str, int] = {}
        for token, parent, names in zip(tree.tokens, tree.parents, tree.proposers, strict=True):
            for name in names if parent == 0 else ():
                firsts.setdefault(name, token)  # the likeliest: nodes come by falling survival
        self._firsts[tree.request_id] = (tree.base, firsts)
        path = _heaviest(tree, weights)
        return structs.replace(
            tree,
            tokens=tuple(tree.tokens[i] for i in path),
            parents=tuple(range(len(path))),
            survival=tuple(tree.survival[i] for i in path),
            proposers=tuple(tree.proposers[i] for i in path),
        )

    def _learn(self, request_id: str, base: int, weights: dict[str, float]) -> None:
        """Change the weight of each drafter of the last round, if that has been verified since."""
        last, firsts = self._firsts.get(request_id, (base, {}))
        if last >= base:
            return
        text = self._texts[text_of(request_id)]
        target_token = text.tokens[last - len(text.prompt_ids)]
        for name, token in firsts.items():
            weights[name] = weights.get(name, 1.0) * (RIGHT if token == target_token else WRONG)


class ClimbingLength:
    """One length for all requests of a verifier, which climbs while verifying a committed token gets cheaper."""

    drafters: Final = None

    def __init__(self) -> None:
        self._length, self._step = FIRST, 1
        self._decisions = -PAUSE  # since the last change; below 0 they are not counted
        self._verify_s, self._tokens = 0.0, 0
        self._last: float | None = None  # seconds a token at the length before

    def depths(
        self,
        candidates: Mapping[str, Candidate],
        costs: StepCosts,
        drafting: DraftCosts,
        now_s: float,
        committed: Mapping[str, int],
    ) -> list[int]:
        """Count the last round, move the length when it is due, and return it within each candidate's limit."""
        self._decisions += 1
        if self._decisions > 0:
            self._tokens += sum(committed.values())
            self._verify_s += costs.seconds(len(candidates) * (1 + self._length))
        if self._decisions >= TRIED and self._tokens:
            self._move(self._verify_s / self._tokens)
        return [min(self._length, candidate.limit) for candidate in candidates.values()]

    def _move(self, token_s: float) -> None:
        """Go on in the same direction if this length was better than the one before it, else turn round."""
        if self._last is not None and token_s > self._last:
            self._step = -self._step
        if not 1 <= self._length + self._step <= MOST:
            self._step = -self._step
        self._length += self._step
        self._last, self._decisions, self._verify_s, self._tokens = token_s, -PAUSE, 0.0, 0


def _heaviest(tree: TreeMessage, weights: Mapping[str, float]) -> list[int]:
    """Return the nodes of the root path with the largest sum of weights, the first of equals, from the root on."""
    sums = [0.0]
    for parent, names in zip(tree.parents, tree.proposers, strict=True):
        sums.append(sums[parent] + sum(weights.get(name, 1.0) for name in names))
    node, path = max(range(len(sums)), key=sums.__getitem__), []
    while node:
        path.append(node - 1)
        node = tree.parents[node - 1]
    return path[::-1]
