"""Token fusion (CoSine section 1.3 in the papers' notes): drafters of one node guess a path together, step by step.

At every step each drafter that was asked guesses one token, and all go on from the one said with the most calibrated
confidence; a drafter that lost reads the winner's token instead of its own. What it said hangs beside the path as a
leaf, and so does every second best guess that is likely enough to be worth a row. Out comes one draft a drafter, with
its own guesses and, marked as borrowed, those of the others that they hang below, so that the fusion still knows who
said what. One drafter on its own is the same with nobody to lose to, and may guess several steps in one call.

While a verdict is pending the path can be drawn on (`run_ahead`), as if all of it were going to be right and the
next guess the target's own token. What the verdict and the next job confirm of that is the answer at once; what they
do not is rolled back like any wrong guess.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from math import prod

from app.drafter.draft_kv import MAX_SEQUENCES, MIN_SURVIVAL, DraftKV
from app.estimates.calibration import Calibration
from app.messages import Draft
from app.stages.draft.protocol import Context
from app.state import Guess

MIN_SECOND = 0.15  # least confidence of a second branch
Ask = tuple[Context, Collection[str]]  # a sequence, and the drafters that are asked


class TokenFusion:
    """Drafters that share each token. Keeps every sequence's path, to go on from where a verdict confirms it."""

    def __init__(self, readers: Iterable[DraftKV], calibration: Calibration | None = None) -> None:
        self._readers = tuple(readers)
        self.names = frozenset(reader.name for reader in self._readers)
        self.ahead_hits = self.ahead_misses = 0  # jobs for which guesses made ahead were of use, and were not
        self._calibration = calibration or Calibration()
        self._paths: OrderedDict[str, _Path] = OrderedDict()

    def draft(self, asks: Listed[Ask]) -> list[Draft]:
        """A draft of every drafter that said something, for every context; none for a context too long for a model or
        its cache."""
        paths = [self._path(context, names) for context, names in asks]
        active = [path for path in paths if path.readers and not path.is_done]
        _align(active)
        while active:
            is_single = all(len(path.readers) == 1 for path in active)
            depth = min(path.room for path in active) if is_single else 1
            active = [path for path in self._step(active, depth) if not path.is_done]
        return [draft for path in paths for draft in path.drafts()]

    def run_ahead(self, request_ids: Iterable[str]) -> bool:
        """One more guess for each of these sequences that it may serve; False if there was none to be made."""
        paths = [self._paths[request_id] for request_id in request_ids if request_id in self._paths]
        paths = [path for path in paths if path.may_run_ahead]
        for path in paths:
            path.limit = path.furthest
        _align(paths)
        got_on = self._step(paths, 1, in_spare_time=True)
        for path in got_on:
            path.is_ahead = True
        return bool(got_on)

    def remove(self, request_id: str) -> None:
        """The sequence ended. Its caches are the readers' to forget."""
        self._paths.pop(request_id, None)

    def _path(self, context: Context, names: Collection[str]) -> "_Path":
        """A new path, which begins with what of the last one is still ahead."""
        length = len(context.tokens) + context.max_draft_tokens
        readers = tuple(r for r in self._readers if r.name in names and length <= r.max_context)
        last = self._paths.pop(context.request_id, None)
        steps = last.after(context.tokens) if last and last.names == {r.name for r in readers} else []
        if last:
            self._judge(last, context, is_hit=bool(steps))
        path = self._paths[context.request_id] = _Path(context, readers, steps)
        while len(self._paths) > MAX_SEQUENCES:
            self._paths.popitem(last=False)
        return path

    def _judge(self, last: "_Path", context: Context, *, is_hit: bool) -> None:
        """Learn from a path what the context says of it."""
        if last.is_ahead:
            self.ahead_hits += is_hit
            self.ahead_misses += not is_hit
        if len(self._readers) > 1:
            self._calibration.update_from_drafts(last.drafts(), context.tokens[last.start :])

    def _step(self, paths: list["_Path"], depth: int, *, in_spare_time: bool = False) -> list["_Path"]:
        """Up to `depth` steps of aligned paths, more than one only of a single drafter's; those that got on."""
        said: dict[str, dict[DraftKV, list[Guess]]] = {path.id: {} for path in paths}
        for reader in self._readers:
            asked = [path.id for path in paths if reader in path.readers]
            for request_id, guesses in reader.guess(asked, depth, in_spare_time=in_spare_time).items():
                said[request_id][reader] = guesses
        for path in paths:
            path.take(said[path.id], self._calibration)
        return [path for path in paths if said[path.id]]


@dataclass(slots=True)
class _Step:
    """One token of a path, how sure whoever won with it is, and what each drafter said in its place."""

    token: int
    confidence: float
    said: dict[str, Guess]


class _Path:
    """What is guessed for one context, and the drafters at it; it may be longer than what was asked for."""

    def __init__(self, context: Context, readers: tuple[DraftKV, ...], steps: list[_Step]) -> None:
        self.context = context
        self.readers = readers  # those that have not failed yet
        self.names = {reader.name for reader in readers}
        self.start = len(context.tokens)
        self.tokens = [*context.tokens, *(step.token for step in steps)]
        self.limit = context.max_draft_tokens
        self.is_ahead = False  # has it been drawn on since it was asked for?
        self._steps = steps

    @property
    def id(self) -> str:
        return self.context.request_id

    @property
    def room(self) -> int:
        """Steps it may still take."""
        return self.limit - len(self._steps)

    @property
    def is_done(self) -> bool:
        return self.room <= 0 or prod(step.confidence for step in self._steps) < MIN_SURVIVAL

    @property
    def furthest(self) -> int:
        """Steps that the next round can use: what is asked for now, the target's own token, and as much again."""
        return 2 * self.context.max_draft_tokens + 1

    @property
    def may_run_ahead(self) -> bool:
        is_short = len(self._steps) < self.furthest and len(self.tokens) < min(
            (reader.max_context for reader in self.readers), default=0
        )
        return is_short and prod(step.confidence for step in self._steps) >= MIN_SURVIVAL

    def after(self, tokens: list[int]) -> list[_Step]:
        """The steps that lie ahead of these tokens, if it comes by them."""
        if len(tokens) < self.start or self.tokens[: len(tokens)] != tokens:
            return []
        return self._steps[len(tokens) - self.start :]

    def take(self, said: dict[DraftKV, list[Guess]], calibration: Calibration) -> None:
        """Go on by the guesses of those that had any; the others are out of it."""
        self.readers = tuple(reader for reader in self.readers if reader in said)
        before = len(self.tokens)
        if len(said) == 1:
            ((reader, guesses),) = said.items()
            for guess in guesses:
                if not self.is_done:
                    self._append(_Step(guess.token, guess.confidence, {reader.name: guess}))
        elif said:
            self._append(_fused({reader.name: guesses[0] for reader, guesses in said.items()}, calibration))
        for reader in said:
            reader.advance(self.id, self.tokens[before:])

    def drafts(self) -> list[Draft]:
        """What was asked for, drafter by drafter."""
        survival, steps = 1.0, []
        for step in self._steps[: self.context.max_draft_tokens]:
            if survival < MIN_SURVIVAL:
                break
            steps.append(step)
            survival *= step.confidence
        names = dict.fromkeys(name for step in steps for name in step.said)
        return [_draft(self.id, self.start, name, steps) for name in names]

    def _append(self, step: _Step) -> None:
        self._steps.append(step)
        self.tokens.append(step.token)


def _align(paths: list[_Path]) -> None:
    for path in paths:
        for reader in path.readers:
            reader.align(path.context, path.tokens)


def _fused(said: dict[str, Guess], calibration: Calibration) -> _Step:
    """The step of the most confident; a tie goes to the first."""
    sure = {name: calibration.value(name, guess.confidence) for name, guess in said.items()}
    winner = max(sure, key=sure.__getitem__)
    return _Step(said[winner].token, sure[winner], said)


@dataclass(slots=True)
class _Node:
    """A node of one drafter's draft: `depth` steps down the path, on it or a leaf beside it."""

    survival: float
    depth: int
    token: int
    confidence: float
    is_leaf: bool = False
    is_borrowed: bool = False


def _draft(request_id: str, base: int, name: str, steps: list[_Step]) -> Draft:
    """One drafter's part, likeliest nodes first, parents before children: whoever cuts it cuts the least."""
    nodes: list[_Node] = []
    survival, used = 1.0, 0
    for depth, step in enumerate(steps, start=1):
        own = _own(step, name, depth, survival)
        used = depth if own else used
        survival *= step.confidence
        if all(node.is_leaf for node in own):
            own.append(_Node(survival, depth, step.token, 0.0, is_borrowed=True))
        nodes += own
    # Of equals the path goes first, so the first child of a node is the one that everybody goes on from.
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


def _own(step: _Step, name: str, depth: int, survival: float) -> list[_Node]:
    """What a drafter said itself at a step; `survival` is that of the path before it."""
    guess = step.said.get(name)
    if guess is None:
        return []
    said = [(guess.token, guess.confidence)]
    # On the path a second best is worth its row whatever its chance: the row is there.
    if guess.second_confidence >= MIN_SECOND or guess.second == step.token != guess.token:
        said.append((guess.second, guess.second_confidence))
    below = survival * step.confidence  # a leaf never counts for more than the path beside it
    return [
        _Node(below, depth, token, confidence)
        if token == step.token
        else _Node(min(below, survival * confidence), depth, token, confidence, is_leaf=True)
        for token, confidence in dict(reversed(said)).items()
    ]


def _is_needed(node: _Node, nodes: list[_Node]) -> bool:
    return any(n.depth > node.depth and not n.is_borrowed for n in nodes)
