"""Make contexts, and models with a rule for every guess."""

from random import Random

from app.drafter.token_fusion import Ask, TokenFusion
from app.messages import Draft
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.state import Guess
from tests.fakes import VOCAB, ScriptedGuesser

TOKENS = [3, 1, 4, 1, 5]


def context(tokens: list[int] = TOKENS, depth: int = 4, request_id: str = "r") -> Context:
    return Context(request_id, "public", list(tokens), 1, depth, Sampling())


def steady(step: int, confidence: float = 0.9, second: int = 0, second_confidence: float = 0.0) -> ScriptedGuesser:
    """Guess that each token is `step` more than the one before."""
    return ScriptedGuesser(lambda read: Guess((read[-1] + step) % VOCAB, confidence, second, second_confidence))


def erratic(seed: int) -> ScriptedGuesser:
    """Guess by the whole text before, so that a cache that was rolled back wrongly shows."""

    def say(read: list[int]) -> Guess:
        draw = Random(hash((seed, *read)))
        return Guess(draw.randrange(5), draw.uniform(0.05, 0.9), draw.randrange(5, 9), draw.uniform(0.0, 0.4))

    return ScriptedGuesser(say)


def chain(draft: Draft) -> list[int]:
    """Return the first child of each node, from the root on."""
    found, node = [], 0
    while node in draft.parents:
        node = draft.parents.index(node) + 1
        found.append(draft.tokens[node - 1])
    return found


def drafts_of(fusion: TokenFusion, asks: list[Ask]) -> list[Draft]:
    part = fusion.begin(asks)
    while not part.is_done:
        fusion.go_on()
    return part.drafts
