"""Hold a recording of real drafts: each model drafter's guesses after each token of the target's texts, and the costs.

The text never depends on drafts (design D1), so a recording holds all that any way of routing, fusing and scheduling
them can lead to. Model-free drafters are not in it: a replay runs them.
"""

import gzip
import random
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import Self, TypeAlias

from pydantic import BaseModel, ConfigDict

from app.state import Guess

DEPTH = 8  # tokens of a recorded chain
CHOICES = 4  # of each of its guesses
MOST_AT_ONCE = 256  # sequences that a stated drafter guesses for in the time of one
READS = 64  # tokens of a prompt that it reads in the time of a guess
Chain: TypeAlias = tuple[Guess, ...]
Chains: TypeAlias = tuple[tuple[Chain, ...], ...]
Branches: TypeAlias = tuple[tuple[tuple[Chain, ...], ...], ...]


class Base(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Text(Base):
    """A prompt, and the target's own text after it, as token ids."""

    domain: str
    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]


class DrafterLog(Base):
    """A drafter's guesses and costs.

    `guesses[text][i]`: its chain after the text's first i tokens, with the target's state if it
    reads that. `branches[text][i][n]`: its chain behind choice n + 2 of the first of them; none in
    older recordings.
    """

    guesses: Chains
    branches: Branches = ()
    token_s: dict[int, float]  # seconds of one more guess by sequences at once
    read_s: float = 0.0  # seconds of reading one token of a prompt
    context_s: float = 0.0  # seconds that one cached token of any sequence adds to each guess

    def after(self, text: int, tokens: Listed[int], base: int, path: Listed[int]) -> Chain:
        """Return what was recorded behind `path`, which stands behind the first `base` of a text's tokens.

        A chain goes on while the path follows it. Behind another choice it is the branch, behind another right token
        that prefix's chain, and behind another wrong one it goes on as behind its own: right it is never again.
        """
        chain, is_right = self._chain(text, base), True
        for at, token in enumerate(path, start=base):
            was_right, is_right = is_right, is_right and at < len(tokens) and tokens[at] == token
            if chain and chain[0].token == token:
                chain = chain[1:]
            elif was_right and (branch := self._branch(text, at, token)):
                chain = branch
            else:
                chain = self._chain(text, at + 1) if is_right else chain[1:]
            if is_right and not chain:
                chain = self._chain(text, at + 1)
        return chain

    def _chain(self, text: int, at: int) -> Chain:
        chains = self.guesses[text]
        return chains[at] if 0 <= at < len(chains) else ()

    def _branch(self, text: int, at: int, token: int) -> Chain:
        if not self.branches or not (chain := self._chain(text, at)):
            return ()
        behind = zip(choices_of(chain[0])[1:], self.branches[text][at], strict=False)
        return next((branch for (choice, _), branch in behind if choice == token), ())


class Log(Base):
    """A recording: the target's texts and costs, and every model drafter's guesses.

    `target`: the folder of the model whose embedding rates guesses for CoSine's routing; None: only equal tokens agree.
    """

    costs: str  # the target's StepCosts as JSON
    vocab_size: int
    texts: tuple[Text, ...]
    drafters: dict[str, DrafterLog]
    target: Path | None = None

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a recording, JSON packed by gzip. Raises OSError, pydantic.ValidationError."""
        with gzip.open(file, "rt") as packed:
            return cls.model_validate_json(packed.read())

    def write(self, file: Path) -> None:
        with gzip.open(file, "wt") as packed:
            packed.write(self.model_dump_json())


def choices_of(guess: Guess) -> list[tuple[int, float]]:
    """Return all choices of a guess with their confidences."""
    return [guess[:2], guess[2:4], *guess.further]


def lengthened(log: Log, tokens: Listed[int], seed: int) -> Log:
    """Return the recording with so many random tokens, in turn, before every other prompt; guesses stay as recorded."""
    random_ids, texts = random.Random(seed), list(log.texts)
    for i, text in list(enumerate(texts))[1::2]:
        before = [random_ids.randrange(log.vocab_size) for _ in range(tokens[i // 2 % len(tokens)])]
        texts[i] = text.model_copy(update={"prompt_ids": (*before, *text.prompt_ids)})
    return log.model_copy(update={"texts": tuple(texts)})


def with_stated_drafters(log: Log, token_s: float) -> Log:
    """Return the recording with drafters that take `token_s` for a guess in any batch, as if bound by their weights.

    Reading a prompt's token takes a READS-th of it.
    """
    costs = {"token_s": dict.fromkeys((1, MOST_AT_ONCE), token_s), "read_s": token_s / READS}
    stated = {name: own.model_copy(update=costs) for name, own in log.drafters.items()}
    return log.model_copy(update={"drafters": stated})
