"""Make a small recording, and run ways over it."""

import json
from typing import NamedTuple

from app.stages.draft.registry import build as model_free
from app.state import Guess
from app.store.protocol import Snapshot
from lab.simulate.log import DEPTH, DrafterLog, Log, Text
from lab.simulate.machines import build
from lab.simulate.world import Setting, World
from lab.ways import Variant

STEP_S, TOKEN_S, VOCAB = 0.05, 0.001, 2000
COSTS = json.dumps({"points": [[1, STEP_S], [64, 2 * STEP_S]], "ratio": 1.0})
LENGTH = 40


def chain(tokens: tuple[int, ...], confidence: float) -> tuple[Guess, ...]:
    return tuple(Guess(token, confidence, token + 1, 0.0) for token in tokens)


def expert(texts: list[Text], domain: str, confidence: float = 0.9) -> DrafterLog:
    """Make a drafter that is right in its domain, and elsewhere wrong and less confident."""
    guesses = tuple(
        tuple(
            chain(text.tokens[i : i + DEPTH], confidence)
            if text.domain == domain
            else chain((999,) * DEPTH, confidence / 3)
            for i in range(len(text.tokens))
        )
        for text in texts
    )
    return DrafterLog(guesses=guesses, token_s={1: TOKEN_S, 8: 2 * TOKEN_S}, read_s=TOKEN_S / 10)


def unsure(texts: list[Text]) -> DrafterLog:
    """Make a drafter whose every guess is wrong and has little confidence."""
    return expert(texts, "none", confidence=0.3)


def made_log() -> Log:
    texts = [
        Text(domain=domain, prompt_ids=(1,), tokens=tuple(range(100 * i, 100 * i + LENGTH)))
        for i, domain in enumerate(("code", "prose") * 4, start=1)
    ]
    drafters = {"coder": expert(texts, "code"), "writer": expert(texts, "prose")}
    return Log(costs=COSTS, vocab_size=VOCAB, texts=tuple(texts), drafters=drafters)


class Ran(NamedTuple):
    """A simulation that has ended."""

    world: World
    ends: list[Snapshot]

    @property
    def seconds(self) -> float:
        return max(end.stats.last_token_s or 0.0 for end in self.ends)

    @property
    def rounds(self) -> int:
        return sum(end.stats.rounds for end in self.ends)

    @property
    def tokens(self) -> int:
        return sum(len(end.tokens) for end in self.ends)

    @property
    def tokens_a_round(self) -> float:
        return self.tokens / self.rounds


def run(log: Log, variant: Variant, **setting: float) -> Ran:
    world = build(log, variant, Setting(**setting), model_free)  # type: ignore[arg-type]
    world.run()
    return Ran(world, [world.store.snapshot(record.id) for record in world.ended])


def model(name: str) -> Variant:
    return Variant(name, drafters=(name,), model_free=())
