"""Hold a recording of real drafts: each model drafter's guesses after each token of the target's texts, and the costs.

The text never depends on drafts (design D1), so a recording holds all that any way of routing, fusing and scheduling
them can lead to. Model-free drafters are not in it: a replay runs them.
"""

import gzip
import random
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from app.state import Guess

DEPTH = 8  # tokens of a recorded chain
MOST_AT_ONCE = 256  # sequences that a stated drafter guesses for in the time of one
READS = 64  # tokens of a prompt that it reads in the time of a guess


class Base(BaseModel):
    """A frozen record of a log."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Text(Base):
    """A prompt, and the target's own text after it, as token ids."""

    domain: str
    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]


class DrafterLog(Base):
    """A drafter's guesses and costs.

    `guesses[text][i]`: its chain after the text's first i tokens, with the target's state if it
    reads that.
    """

    guesses: tuple[tuple[tuple[Guess, ...], ...], ...]
    token_s: dict[int, float]  # seconds of one more guess by sequences at once
    read_s: float = 0.0  # seconds of reading one token of a prompt
    context_s: float = 0.0  # seconds that one cached token of any sequence adds to each guess


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
        """Write the recording. Raises OSError."""
        with gzip.open(file, "wt") as packed:
            packed.write(self.model_dump_json())


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
