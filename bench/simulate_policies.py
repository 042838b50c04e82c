"""The policies that `bench simulate` replays: whom to ask, and what tree comes of what they say.

Fusion, calibration and the logs' drafts are the real ones. Two things are approximated: the agreement in CoSine's score
counts equal tokens (the paper compares their embeddings), and where tokens are shared and the shared one is wrong, what
follows is what its own drafter said next (all of it is wrong by then: it costs rows and time, and changes no text).
"""

from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from math import ceil, sqrt

from app.calibration import Calibration
from app.messages import Draft, DraftJob, Sampling
from app.stages.fuse import MAX_NODES, fuse
from app.state import Tree
from bench.simulate_log import Guess, Log

MOST = 2  # drafters of a sequence where they are chosen
DECAY, PRIOR_WEIGHT = 0.9, 4.0  # of a sequence's own record, and what all sequences' counts for in it
CURIOSITY = 1.0  # standard deviations of doubt that count for a drafter
MATCH_RATE, SHORT, NEW_SHARE, BEST_SHARE = 0.3, 2.0, 0.5, 0.8  # CoSine's eta, tau, alpha, beta: reconstructed


@dataclass(slots=True)
class Score:
    """One drafter on one sequence, or on all: tokens right and tried; CoSine's entry; rounds asked."""

    right: float = 0.0
    tries: float = 0.0
    match: float = 0.5
    rounds: int = 0


@dataclass(slots=True)
class Policy:
    """How drafts are made. `length`: the same every round; None: as many tokens as pay, by the real rule."""

    name: str
    drafters: tuple[str, ...]  # on nodes of their own
    tables: tuple[str, ...] = ()  # where drafts are fused, at no cost
    routing: str = "all"  # all, learned, cosine
    shares_tokens: bool = False
    length: int | None = None
    speculates: bool = True
    calibration: Calibration = field(default_factory=Calibration)
    everyone: dict[str, Score] = field(default_factory=dict)
    own: dict[int, dict[str, Score]] = field(default_factory=dict)  # by text
    recent: dict[int, float] = field(default_factory=dict)  # accepted length, by text

    def choose(self, text: int, depth: int) -> tuple[str, ...]:
        """Whom to ask for `depth` tokens in this text's next round."""
        if self.routing == "all" or len(self.drafters) < 2:
            return self.drafters
        scores = self._scores(text)
        turn = text % len(self.drafters)  # of equals, each text tries another one first
        names = [*self.drafters[turn:], *self.drafters[:turn]]
        if self.routing == "cosine":
            return self._cosine(names, scores, self.recent.get(text, 0.0) < SHORT)
        return self._learned(names, scores, text, depth)

    def learn(self, text: int, asked: Mapping[str, Guess], committed: Listed[int]) -> None:
        """The tokens that were committed after what these drafters said."""
        self.calibration.learn([_draft(name, guess) for name, guess in asked.items()], committed)
        for name in set(asked) & set(self.drafters):
            right, tried = _judged(asked[name], committed)
            for score, decay in ((self._scores(text)[name], DECAY), (self._everyone(name), 0.99)):
                score.right, score.tries = score.right * decay + right, score.tries * decay + tried
            own = self._scores(text)[name]
            own.rounds += 1
            own.match += MATCH_RATE * (_harmonic(asked[name], committed) - own.match)
        self.recent[text] = 0.8 * self.recent.get(text, float(len(committed))) + 0.2 * len(committed)

    def _learned(self, names: list[str], scores: Mapping[str, Score], text: int, depth: int) -> tuple[str, ...]:
        """The drafter that promises most, doubt in its favour while little is accepted; a second if it adds enough."""
        curiosity = CURIOSITY if self.recent.get(text, 0.0) < SHORT else 0.0
        chance = {name: self._acceptance(name, scores[name]) for name in names}
        doubt = {name: sqrt(0.25 / (scores[name].tries + PRIOR_WEIGHT)) for name in names}
        ranked = sorted(names, key=lambda name: -_tokens(min(0.98, chance[name] + curiosity * doubt[name]), depth))
        adds = (1.0 - chance[ranked[0]]) * _tokens(chance[ranked[1]], depth)
        return tuple(ranked[: MOST if adds >= 0.1 else 1])

    def _cosine(self, names: list[str], scores: Mapping[str, Score], is_exploring: bool) -> tuple[str, ...]:
        by_match = sorted(names, key=lambda name: -scores[name].match)
        by_rounds = sorted(names, key=lambda name: scores[name].rounds)
        first, then = (by_rounds, by_match) if is_exploring else (by_match, by_rounds)
        share = ceil((NEW_SHARE if is_exploring else BEST_SHARE) * MOST)
        chosen = first[:share]
        return tuple(chosen + [name for name in then if name not in chosen][: MOST - len(chosen)])

    def _acceptance(self, name: str, own: Score) -> float:
        everyone = self._everyone(name)
        prior = (everyone.right + 2.4) / (everyone.tries + 4.0)
        return (own.right + PRIOR_WEIGHT * prior) / (own.tries + PRIOR_WEIGHT)

    def _scores(self, text: int) -> dict[str, Score]:
        return self.own.setdefault(text, {name: Score() for name in self.drafters})

    def _everyone(self, name: str) -> Score:
        return self.everyone.setdefault(name, Score())


def tree_of(
    policy: Policy, log: Log, text: int, at: int, asked: Listed[str], depth: int
) -> tuple[Tree, dict[str, Guess]]:
    """The fused tree after the text's first `at` tokens, and what each drafter said."""
    said = {name: log.drafters[name].guesses[text][at].cut(depth) for name in (*asked, *policy.tables)}
    if policy.shares_tokens and len(asked) > 1:
        return _comb(policy, log, text, at, asked, depth), said
    if policy.length is not None:  # a plain chain, all of it verified
        main = _main(said[asked[0]])
        count = len(main)
        return Tree(main, list(range(count)), [1.0] * count, [(asked[0],)] * count), said
    job = DraftJob(
        request_id="0", verifier="", fuser="", base=1, start=0, tokens=(0,), prompt_length=1,
        max_draft_tokens=64, drafters=tuple(said), sampling=Sampling(seed=0), due_s=0.0,
    )  # fmt: skip
    return fuse(job, [_draft(name, guess) for name, guess in said.items()], 2**31, policy.calibration), said


def _comb(policy: Policy, log: Log, text: int, at: int, asked: Listed[str], depth: int) -> Tree:
    """CoSine's token fusion: at each step all go on from the most confident one's token; the others' are leaves."""
    tokens = log.texts[text].tokens
    nodes: list[tuple[float, int, int, int, str]] = []  # -survival, order, parent, token, drafter
    parent, survival, winner, stray = 0, 1.0, "", list[tuple[int, float]]()
    for step in range(depth):
        if stray or at + step >= len(tokens):  # the shared path has left the text, or the text has ended
            offers = [(stray[0][1], winner, stray[0][0])] if stray else []
            stray = stray[1:]
        else:
            offers = [offer for name in asked if (offer := _first(log.drafters[name].guesses[text][at + step], name))]
        if not offers:
            break
        offers = [(policy.calibration.value(name, confidence), name, token) for confidence, name, token in offers]
        best, winner, shared = max(offers)
        left = 1.0 - best
        order = len(nodes) + 1
        nodes.append((-survival * best, order, parent, shared, winner))
        for confidence, name, token in sorted(offers, reverse=True):
            if token not in {node[3] for node in nodes if node[2] == parent}:
                nodes.append((-survival * min(confidence, left) * left, len(nodes) + 1, parent, token, name))
        if not stray and at + step < len(tokens) and shared != tokens[at + step]:
            guess = log.drafters[winner].guesses[text][at + step]
            stray = [*zip(_main(guess)[1:], _main_confidences(guess)[1:], strict=True)] or [(shared, 0.0)]
        parent, survival = order, survival * best
    return _sorted(nodes)


def _sorted(nodes: list[tuple[float, int, int, int, str]]) -> Tree:
    """By falling survival, parents first, as the verifier wants them."""
    tree, places = Tree(), {0: 0}
    for negative, order, parent, token, name in sorted(nodes)[:MAX_NODES]:
        if parent not in places:
            continue
        places[order] = len(tree) + 1
        tree.tokens.append(token)
        tree.parents.append(places[parent])
        tree.survival.append(-negative)
        tree.proposers.append((name,))
    return tree


def _first(guess: Guess, name: str) -> tuple[float, str, int] | None:
    return (guess.confidences[0], name, guess.tokens[0]) if guess.tokens else None


def _main_nodes(guess: Guess) -> list[int]:
    tip, found = 0, []
    for node, parent in enumerate(guess.parents, start=1):
        if parent == tip:
            tip = node
            found.append(node - 1)
    return found


def _main(guess: Guess) -> list[int]:
    """The tokens of its main branch, that of first children."""
    return [guess.tokens[i] for i in _main_nodes(guess)]


def _main_confidences(guess: Guess) -> list[float]:
    return [guess.confidences[i] for i in _main_nodes(guess)]


def _judged(guess: Guess, committed: Listed[int]) -> tuple[int, int]:
    """(right, tried) of the main branch, up to the first wrong one; nothing said was as good as wrong."""
    main = _main(guess)[: len(committed)]
    right = next((i for i, token in enumerate(main) if token != committed[i]), len(main))
    return right, right + int(right < len(main) or not main)


def _harmonic(guess: Guess, committed: Listed[int]) -> float:
    main, confidences = _main(guess)[: len(committed)], _main_confidences(guess)[: len(committed)]
    if not main:
        return 0.0
    confidence = sum(confidences) / len(main)
    agreement = sum(token == said for token, said in zip(main, committed, strict=False)) / len(main)
    return 2.0 * confidence * agreement / (confidence + agreement) if confidence + agreement else 0.0


def _tokens(chance: float, depth: int) -> float:
    return chance * (1.0 - chance**depth) / (1.0 - chance) if chance < 1.0 else float(depth)


def _draft(name: str, guess: Guess) -> Draft:
    return Draft(
        request_id="0", base=1, drafter=name,
        tokens=guess.tokens, parents=guess.parents, confidences=guess.confidences,
    )  # fmt: skip
