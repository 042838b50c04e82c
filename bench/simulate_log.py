"""Logs of real drafts: what every drafter says after every token of the target's own texts, and what things cost.

By D1 the text never depends on drafts, so such a log holds all that any way of routing, fusing and cutting them can
lead to. A draft of d tokens is the first d levels of one of DEPTH.
"""

import time
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Listed
from itertools import pairwise
from typing import Self

from pydantic import BaseModel, ConfigDict

from app.assemble import Models
from app.config import Settings
from app.messages import Draft, Sampling
from app.stages.draft.model import ModelDrafter
from app.stages.draft.protocol import Context, Drafter
from app.stages.draft.registry import build
from bench.cooperate_arms import PipelineArm
from bench.cooperate_plans import OFF, Plan
from bench.stats import median

DEPTH = 8
BATCHES = (1, 2, 4, 8)  # contexts at once, for which drafting is timed
TIMED = 12  # calls for each


class Base(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Text(Base):
    """One prompt, and what the target says."""

    domain: str
    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]


class Guess(Base):
    """A draft without its address: `app.messages.Draft`."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()

    def cut(self, depth: int) -> Self:
        """Its first levels."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        kept = [i for i, level in enumerate(depths[1:]) if level <= depth]
        places = {0: 0} | {i + 1: place for place, i in enumerate(kept, start=1)}
        return type(self)(
            tokens=tuple(self.tokens[i] for i in kept),
            parents=tuple(places[self.parents[i]] for i in kept),
            confidences=tuple(self.confidences[i] for i in kept),
        )


class DrafterLog(Base):
    """`guesses[text][i]`: what it says after the text's first i tokens. No `token_s`: it costs nothing."""

    guesses: tuple[tuple[Guess, ...], ...]
    token_s: dict[int, float] = {}  # seconds of one more token by contexts at once


class Log(Base):
    """A recording."""

    costs: str  # the target's CostTable as JSON
    texts: tuple[Text, ...]
    drafters: dict[str, DrafterLog]


def record(settings: Settings, models: Models, prompts: Mapping[str, Listed[str]], max_tokens: int) -> Log:
    """Have the target say its texts and every drafter guess at them."""
    texts = _texts(settings, models, prompts, max_tokens)
    found: dict[str, DrafterLog] = {}
    for name, guesser in models.guessers.items():
        drafter = ModelDrafter(name, guesser, guesser.max_context)
        guesses = _beside(drafter, texts)
        found[name] = DrafterLog(guesses=guesses, token_s=_timed(drafter, texts))
        for i in range(len(texts)):
            drafter.forget(str(i))
    for table in build():  # one text after the other: the suffix table knows those before, as it would
        found[table.name] = DrafterLog(guesses=tuple(_alone(table, i, text) for i, text in enumerate(texts)))
    return Log(costs=models.costs, texts=tuple(texts), drafters=found)


def _texts(settings: Settings, models: Models, prompts: Mapping[str, Listed[str]], max_tokens: int) -> list[Text]:
    arm = PipelineArm(Plan(OFF, speculates=False), settings, models, max_tokens)
    return [
        Text(domain=domain, prompt_ids=arm.prompt_ids(prompt), tokens=arm([prompt]).token_ids[0])
        for domain, of_domain in prompts.items()
        for prompt in of_domain
    ]


def _beside(drafter: Drafter, texts: Listed[Text]) -> tuple[tuple[Guess, ...], ...]:
    """All texts in step, which is faster."""
    found: list[list[Guess]] = [[] for _ in texts]
    for at in range(max(len(text.tokens) for text in texts)):
        contexts = [_context(i, text, at) for i, text in enumerate(texts) if at < len(text.tokens)]
        drafts = {draft.request_id: draft for draft in drafter.draft(contexts)}
        for context in contexts:
            found[int(context.request_id)].append(_guess(drafts.get(context.request_id)))
    return tuple(map(tuple, found))


def _alone(drafter: Drafter, i: int, text: Text) -> tuple[Guess, ...]:
    found = []
    for at in range(len(text.tokens)):
        context = _context(i, text, at)
        drafter.observe(context)
        drafts = drafter.draft([context])
        found.append(_guess(drafts[0] if drafts else None))
    drafter.observe(_context(i, text, len(text.tokens)))
    drafter.forget(str(i))
    return tuple(found)


def _timed(drafter: Drafter, texts: Listed[Text]) -> dict[int, float]:
    """Seconds of one more draft token: by how much deeper drafts take longer."""
    found = {}
    for batch in BATCHES:
        some = [*enumerate(texts)][:batch]
        times = {depth: _seconds(drafter, some, depth) for depth in (1, DEPTH)}
        ((low, low_s), (high, high_s)) = next(pairwise(times.items()))
        found[batch] = max(1e-6, (high_s - low_s) / (high - low))
    return found


def _seconds(drafter: Drafter, texts: Iterable[tuple[int, Text]], depth: int) -> float:
    texts = [*texts]
    taken = []
    for at in range(4, 4 + TIMED):
        contexts = [_context(i, text, min(at, len(text.tokens)), depth) for i, text in texts]
        started = time.perf_counter()
        drafter.draft(contexts)
        taken.append(time.perf_counter() - started)
    return median(taken)


def _context(i: int, text: Text, at: int, depth: int = DEPTH) -> Context:
    tokens = [*text.prompt_ids, *text.tokens[:at]]
    return Context(str(i), "public", tokens, len(text.prompt_ids), depth, Sampling(seed=0))


def _guess(draft: Draft | None) -> Guess:
    if draft is None:
        return Guess()
    confidences = tuple(round(confidence, 4) for confidence in draft.confidences)
    return Guess(tokens=draft.tokens, parents=draft.parents, confidences=confidences)
