"""Make texts and drafts of stated statistics (`AcceptanceSpec`), as a recording that the simulator replays.

The hardness h of a text's tokens is an AR(1) process. A drafter is right about a token where its margin

    m = skill - sqrt(c) h - sqrt(1 - c) e > 0,    e its own noise, c the correlation between drafters.

Its confidence is the chance of that given m with noise, so that it is calibrated; the noise sets the area under its
ROC. Behind its first wrong token all of a chain is wrong. Two wrong drafters guess the same token with a stated chance.
Skills are found by bisection, so that chains of the stated length give the stated tokens a round.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listed
from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch

from app.state import Guess
from lab.simulate.log import DEPTH, DrafterLog, Log, Text
from lab.testbeds.roofline import context_s, guess_s, prompt_token_s, step_costs
from lab.testbeds.worlds import AcceptanceSpec, DrafterSpec, WorldSpec

VOCAB = 50_000
SAMPLE = 20_000  # tokens by which skills are found
HALVINGS = 24


class Wanted(NamedTuple):
    """A text to make: its domain and lengths in tokens."""

    domain: str
    prompt_tokens: int
    output_tokens: int


class Drawn(NamedTuple):
    """A drafter's guesses at the tokens of a text: whether each is right, and its confidence."""

    right: np.ndarray  # (T,) bool
    confidence: np.ndarray  # (T,) float64


def wanted_of(world: WorldSpec, data: str, count: int) -> list[Wanted]:
    load, domains = world.loads[data], world.domains
    lengths = round(load.prompt_tokens.value), round(load.output_tokens.value)
    return [Wanted(domains[i % len(domains)], *lengths) for i in range(count)]


def made(world: WorldSpec, wanted: Listed[Wanted], seed: int) -> Log:
    """Make a recording of these texts with the world's drafters and costs; the same for the same seed."""
    draws = np.random.default_rng(seed)
    spec, hard, texts = world.acceptance, [], []
    for domain, prompt_tokens, output_tokens in wanted:
        hard.append(_hardness(output_tokens, spec.texture.value, draws))
        ids = draws.integers(VOCAB, size=prompt_tokens + output_tokens).tolist()
        texts.append(Text(domain=domain, prompt_ids=tuple(ids[:prompt_tokens]), tokens=tuple(ids[prompt_tokens:])))
    alike = [draws.integers(1, VOCAB, size=len(text.tokens)) for text in texts]  # what wrong drafters may agree on
    guesses: dict[str, tuple[tuple[tuple[Guess, ...], ...], ...]] = {}
    for number, name in enumerate(world.drafters):
        own = np.random.default_rng((seed, number))
        drawn = [
            draw(spec, _skill(spec, tokens_a_round_of(world, name, text.domain)), difficulty, own)
            for text, difficulty in zip(texts, hard, strict=True)
        ]
        guesses[name] = tuple(
            _chains(text.tokens, one, _wrong(text, agreed, spec.agreement.value, own))
            for text, one, agreed in zip(texts, drawn, alike, strict=True)
        )
    return Log.model_construct(  # not validated again: millions of guesses
        costs=step_costs(world).dumps(),
        vocab_size=VOCAB,
        texts=tuple(texts),
        drafters={name: drafter_log(world, name, own) for name, own in guesses.items()},
    )


def drafter_log(world: WorldSpec, name: str, guesses: tuple[tuple[tuple[Guess, ...], ...], ...]) -> DrafterLog:
    return DrafterLog.model_construct(
        guesses=guesses,
        token_s=guess_s(world, name),
        read_s=prompt_token_s(world, name),
        context_s=context_s(world, name),
    )


def over_recording(world: WorldSpec, log: Log, mixture: str) -> tuple[WorldSpec, Log]:
    """Return the world with a recording's drafters in the places of its own, and the recording at the world's costs.

    `mixture`: the drafter that was trained on the mixture. Raises ValueError where the world has too few places.
    """
    names: Listed[str] = [name for name in log.drafters if name != mixture]
    experts = [one for one in world.drafters.values() if one.domain]
    mixed = [one for one in world.drafters.values() if not one.domain]
    if not experts:
        names, experts = names[:1] or [mixture], mixed
    if len(names) > len(experts):
        raise ValueError(f"the recording has {len(names)} experts, the world places for {len(experts)}")
    placed: dict[str, DrafterSpec] = dict(zip(names, experts, strict=False))
    if mixture in log.drafters and mixture not in placed:
        placed[mixture] = mixed[0]
    own = world.model_copy(update={"drafters": placed})
    drafters = {name: drafter_log(own, name, log.drafters[name].guesses) for name in placed}
    return own, log.model_copy(update={"costs": step_costs(own).dumps(), "drafters": drafters})


def half(log: Log, first: int) -> Log:
    """Return every second text of a recording, from the first or the second one on."""
    drafters = {name: own.model_copy(update={"guesses": own.guesses[first::2]}) for name, own in log.drafters.items()}
    return log.model_copy(update={"texts": log.texts[first::2], "drafters": drafters})


def tokens_a_round_of(world: WorldSpec, name: str, domain: str) -> float:
    spec, home = world.acceptance, world.drafters[name].domain
    return (spec.mixture if home is None else spec.home if home == domain else spec.elsewhere).value


def draw(spec: AcceptanceSpec, skill: float, hard: np.ndarray, own: np.random.Generator) -> Drawn:
    """Draw a drafter's guesses at tokens that are as hard as this; hard: (T,) float64, standard normal."""
    shared = spec.correlation.value
    margin = skill - sqrt(shared) * hard - sqrt(1.0 - shared) * own.standard_normal(len(hard))
    noise = _noise(skill, spec.auc.value)
    return Drawn(margin > 0.0, _seen(margin, skill, noise, own))


def rounds(right: np.ndarray, length: int) -> int:
    """Count the rounds that chains of `length` take through tokens that are guessed so; right: (T,) bool."""
    at, count = 0, 0
    for next_wrong in (*map(int, np.flatnonzero(~right)), len(right)):
        while at <= next_wrong and at < len(right):
            at, count = min(at + length, next_wrong) + 1, count + 1
    return count


def auc(drawn: Drawn) -> float:
    """Return the chance that a right guess has more confidence than a wrong one."""
    ranks = np.empty(len(drawn.right))
    ranks[np.argsort(drawn.confidence)] = np.arange(len(ranks))
    right = int(drawn.right.sum())
    return float((ranks[drawn.right].sum() - right * (right - 1) / 2.0) / (right * (len(ranks) - right)))


@lru_cache
def _skill(spec: AcceptanceSpec, tokens_a_round: float) -> float:
    """Find the skill with which chains of the stated length give so many tokens a round."""
    draws = np.random.default_rng(0)
    shared, length = spec.correlation.value, round(spec.length.value)
    noise = sqrt(shared) * _hardness(SAMPLE, spec.texture.value, draws)
    noise += sqrt(1.0 - shared) * draws.standard_normal(SAMPLE)
    return _found(lambda skill: SAMPLE / rounds(skill > noise, length), tokens_a_round, -4.0, 4.0)


@lru_cache
def _noise(skill: float, wanted: float) -> float:
    """Find the noise of the margin with which the confidence has this AUC."""
    draws = np.random.default_rng(0)
    margin = skill + draws.standard_normal(SAMPLE)

    def rate(noise: float) -> float:
        return -auc(Drawn(margin > 0.0, _seen(margin, skill, noise, np.random.default_rng(1))))

    return _found(rate, -wanted, 0.01, 100.0)


def _found(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Return where a rising function has the wanted value, by bisection."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2.0


def _seen(margin: np.ndarray, skill: float, noise: float, own: np.random.Generator) -> np.ndarray:
    """Return the chance of a margin above 0 given margin + noise, the margin being normal about the skill."""
    view = margin + noise * own.standard_normal(len(margin))
    part = noise * noise / (1.0 + noise * noise)
    return torch.special.ndtr(torch.from_numpy((part * skill + (1.0 - part) * view) / sqrt(part))).numpy()


def _hardness(tokens: int, texture: float, draws: np.random.Generator) -> np.ndarray:
    """Return (T,) float64: an AR(1) process of standard normals."""
    fresh = draws.standard_normal(tokens)
    found, scale = np.empty(tokens), sqrt(1.0 - texture * texture)
    last = fresh[0]
    for i, one in enumerate(fresh):
        last = found[i] = one if i == 0 else texture * last + scale * one
    return found


def _wrong(text: Text, agreed: np.ndarray, agreement: float, own: np.random.Generator) -> list[int]:
    """Return a wrong token for each position and DEPTH more; agreed: (T,) int64, the distance of the one in common."""
    count = len(text.tokens)
    apart = own.integers(1, VOCAB, size=count)
    distance = np.where(own.random(count) < sqrt(agreement), agreed, apart)  # of two wrong ones, both
    found = (np.asarray(text.tokens) + distance) % VOCAB
    return [*map(int, found), *map(int, own.integers(VOCAB, size=DEPTH))]


def _chains(tokens: tuple[int, ...], drawn: Drawn, wrong: Listed[int]) -> tuple[tuple[Guess, ...], ...]:
    """Return the chain of DEPTH guesses after each of a text's tokens; none before the first."""
    count, sure = len(tokens), [*map(float, drawn.confidence)]
    sure += sure[-1:] * DEPTH
    on = [Guess(tokens[i] if drawn.right[i] else wrong[i], sure[i], tokens[i], 0.0) for i in range(count)]
    off = [Guess(wrong[i], sure[i], wrong[i], 0.0) for i in range(count + DEPTH)]
    chains: list[tuple[Guess, ...]] = [()]
    ends = [*map(int, np.flatnonzero(~drawn.right)), count]
    place = 0
    for at in range(1, count):
        while ends[place] < at:
            place += 1
        turn = min(ends[place] + 1, at + DEPTH, count)  # behind the first wrong token all are
        chains.append((*on[at:turn], *off[turn : at + DEPTH]))
    return tuple(chains)


def statistics(log: Log, length: int) -> dict[str, dict[str, float]]:
    """Return each drafter's tokens a round of `length` by domain; "any": a guess of any drafter is right."""
    names: Mapping[str, list[str]] = {name: [name] for name in log.drafters} | {"any": [*log.drafters]}
    found: dict[str, dict[str, float]] = {}
    for name, own in names.items():
        counts: dict[str, list[int]] = {}
        for i, text in enumerate(log.texts):
            firsts = [[chain[0].token if chain else -1 for chain in log.drafters[one].guesses[i]] for one in own]
            right = np.any(np.asarray(firsts) == np.asarray(text.tokens), axis=0)[1:]
            for domain in (text.domain, "all"):
                count = counts.setdefault(domain, [0, 0])
                count[0] += len(right)
                count[1] += rounds(right, length)
        found[name] = {domain: round(tokens / in_rounds, 3) for domain, (tokens, in_rounds) in sorted(counts.items())}
    return found
