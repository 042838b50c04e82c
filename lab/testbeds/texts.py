"""Make texts and drafts of stated statistics (`AcceptanceSpec`), as a recording that the simulator replays.

The hardness h of a text's tokens is an AR(1) process about the text's own mean. A drafter is right about a token where
its margin

    m = skill - sqrt(c) h - sqrt(1 - c) e > 0,    e its own noise, c the correlation between drafters.

Its confidence is the chance of that given m with noise and the text's mean, so that it is calibrated; the noise sets
the area under its ROC. Of the chance that is left its second choice has a part, found so that it is right as often as
stated, and never more than the first has; so have the third and fourth, as recorded drafters do. Behind its first wrong
token all of a chain is wrong, behind a later choice that is right the chain of that prefix follows
(`DrafterLog.after`). Two wrong drafters guess the same token with a stated chance. Skills are found by bisection, so
that chains of the stated length give the stated tokens a round.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listed
from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch

from app.state import Guess
from lab.simulate.log import CHOICES, DEPTH, Branches, Chain, Chains, DrafterLog, Log, Text
from lab.testbeds.roofline import context_s, guess_s, prompt_token_s, step_costs
from lab.testbeds.worlds import AcceptanceSpec, DrafterSpec, WorldSpec

VOCAB = 50_000
SAMPLE = 20_000  # tokens by which skills are found
REQUESTS = 200  # that they belong to
HALVINGS = 24
# The largest parts of the second, third and fourth choice, over the second's. Where earlier choices are wrong they are
# right in 0.21, 0.14 and 0.09 with the drafters that ship, and in 0.47, 0.42 and 0.35 with the recorded pair.
DECAY = (1.0, 0.8, 0.5)
APART = 9973  # between a drafter's wrong choices


class Wanted(NamedTuple):
    """A text to make: its domain and lengths in tokens."""

    domain: str
    prompt_tokens: int
    output_tokens: int


class Drawn(NamedTuple):
    """A drafter's guesses at the tokens of a text: which choice is right, and the confidence of each."""

    place: np.ndarray  # (T,) int64, of the right choice; CHOICES: none is
    confidences: np.ndarray  # (T, CHOICES) float64

    @property
    def right(self) -> np.ndarray:
        return self.place == 0


def wanted_of(world: WorldSpec, data: str, count: int) -> list[Wanted]:
    load, domains = world.loads[data], world.domains
    lengths = round(load.prompt_tokens.value), round(load.output_tokens.value)
    return [Wanted(domains[i % len(domains)], *lengths) for i in range(count)]


def made(world: WorldSpec, wanted: Listed[Wanted], seed: int) -> Log:
    """Make a recording of these texts with the world's drafters and costs; the same for the same seed."""
    draws = np.random.default_rng(seed)
    spec, hard, texts = world.acceptance, [], []
    means = _means(len(wanted), spec, np.random.default_rng((seed, len(world.drafters))))
    for mean, (domain, prompt_tokens, output_tokens) in zip(means, wanted, strict=True):
        hard.append((mean, _hardness(output_tokens, spec.texture.value, draws)))
        ids = draws.integers(VOCAB, size=prompt_tokens + output_tokens).tolist()
        texts.append(Text(domain=domain, prompt_ids=tuple(ids[:prompt_tokens]), tokens=tuple(ids[prompt_tokens:])))
    alike = [draws.integers(1, VOCAB, size=len(text.tokens)) for text in texts]  # what wrong drafters may agree on
    guesses: dict[str, Chains] = {}
    for number, name in enumerate(world.drafters):
        own = np.random.default_rng((seed, number))
        skills = [_skill(spec, tokens_a_round_of(world, name, text.domain)) for text in texts]
        drawn = [draw(spec, skill, *how, own) for skill, how in zip(skills, hard, strict=True)]
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


def drafter_log(world: WorldSpec, name: str, guesses: Chains, branches: Branches = ()) -> DrafterLog:
    return DrafterLog.model_construct(
        guesses=guesses,
        branches=branches,
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
    drafters = {
        name: drafter_log(own, name, log.drafters[name].guesses, log.drafters[name].branches) for name in placed
    }
    return own, log.model_copy(update={"costs": step_costs(own).dumps(), "drafters": drafters})


def half(log: Log, first: int) -> Log:
    """Return every second text of a recording, from the first or the second one on."""
    drafters = {
        name: own.model_copy(update={"guesses": own.guesses[first::2], "branches": own.branches[first::2]})
        for name, own in log.drafters.items()
    }
    return log.model_copy(update={"texts": log.texts[first::2], "drafters": drafters})


def tokens_a_round_of(world: WorldSpec, name: str, domain: str) -> float:
    spec, home = world.acceptance, world.drafters[name].domain
    return (spec.mixture if home is None else spec.home if home == domain else spec.elsewhere).value


def draw(spec: AcceptanceSpec, skill: float, mean: float, hard: np.ndarray, own: np.random.Generator) -> Drawn:
    """Draw a drafter's guesses at tokens that are as hard as this; hard: (T,) float64, about the text's `mean`."""
    shared = spec.correlation.value
    expected = skill - sqrt(shared) * mean
    margin = expected - sqrt(shared) * hard - sqrt(1.0 - shared) * own.standard_normal(len(hard))
    first = _seen(margin, expected, _noise(spec, skill), own)
    others = _others(first, _part(spec, skill))
    below = np.cumsum(others, axis=1) / np.maximum(1.0 - first, 1e-12)[:, None]  # given that the first is wrong
    place = np.where(margin > 0.0, 0, 1 + (own.random((len(hard), 1)) >= below).sum(axis=1))
    return Drawn(place, np.column_stack((first, others)))


def rounds(right: np.ndarray, length: int) -> int:
    """Count the rounds that chains of `length` take through tokens that are guessed so; right: (T,) bool."""
    at, count = 0, 0
    for next_wrong in (*map(int, np.flatnonzero(~right)), len(right)):
        while at <= next_wrong and at < len(right):
            at, count = min(at + length, next_wrong) + 1, count + 1
    return count


def auc(right: np.ndarray, confidence: np.ndarray) -> float:
    """Return the chance that a right guess has more confidence than a wrong one; (T,) bool, (T,) float64."""
    ranks = np.empty(len(right))
    ranks[np.argsort(confidence)] = np.arange(len(ranks))
    count = int(right.sum())
    return float((ranks[right].sum() - count * (count - 1) / 2.0) / (count * (len(ranks) - count)))


@lru_cache
def _skill(spec: AcceptanceSpec, tokens_a_round: float) -> float:
    """Find the skill with which chains of the stated length give so many tokens a round."""
    draws = np.random.default_rng(0)
    shared, length = spec.correlation.value, round(spec.length.value)
    noise = sqrt(shared) * (_hardness(SAMPLE, spec.texture.value, draws) + _sampled_means(spec))
    noise += sqrt(1.0 - shared) * draws.standard_normal(SAMPLE)
    return _found(lambda skill: SAMPLE / rounds(skill > noise, length), tokens_a_round, -8.0, 8.0)


@lru_cache
def _noise(spec: AcceptanceSpec, skill: float) -> float:
    """Find the noise of the margin with which the confidence has the stated AUC."""
    expected, margin = _sample(spec, skill)

    def rate(noise: float) -> float:
        return -auc(margin > 0.0, _seen(margin, expected, noise, np.random.default_rng(1)))

    return _found(rate, -spec.auc.value, 0.01, 100.0)


@lru_cache
def _part(spec: AcceptanceSpec, skill: float) -> float:
    """Find the part of what the first choice leaves with which the second is right as often as stated.

    Raises ValueError where not even the whole is enough.
    """
    expected, margin = _sample(spec, skill)
    first = _seen(margin, expected, _noise(spec, skill), np.random.default_rng(1))

    def chance(part: float) -> float:
        return float(_others(first, part)[:, 0].sum() / (1.0 - first).sum())

    if chance(1.0) < spec.second.value:
        raise ValueError(f"acceptance.second: with these numbers it is at most {chance(1.0):.2f}")
    return _found(chance, spec.second.value, 0.0, 1.0)


def _sample(spec: AcceptanceSpec, skill: float) -> tuple[np.ndarray, np.ndarray]:
    """Return expected margins and margins of a drafter, (SAMPLE,) float64."""
    expected = skill - sqrt(spec.correlation.value) * _sampled_means(spec)
    return expected, expected + np.random.default_rng(0).standard_normal(SAMPLE)


def _sampled_means(spec: AcceptanceSpec) -> np.ndarray:
    return np.repeat(_means(REQUESTS, spec, np.random.default_rng(1)), SAMPLE // REQUESTS)


def _means(count: int, spec: AcceptanceSpec, own: np.random.Generator) -> np.ndarray:
    """Return so many requests' mean hardness, (count,) float64: a normal's quantiles, shuffled."""
    parts = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return spec.spread.value * own.permutation(torch.special.ndtri(parts).numpy())


def _others(first: np.ndarray, part: float) -> np.ndarray:
    """Return the confidences of the choices behind the first, (T, CHOICES - 1), of that of the first, (T,) float64."""
    found, left, last = [], 1.0 - first, first
    for decay in DECAY:
        last = np.minimum(last, decay * part * left)
        left = left - last
        found.append(last)
    return np.column_stack(found)


def _found(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Return where a rising function has the wanted value, by bisection."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2.0


def _seen(margin: np.ndarray, expected: np.ndarray | float, noise: float, own: np.random.Generator) -> np.ndarray:
    """Return the chance of a margin above 0 given margin + noise, the margin being normal about the expected."""
    view = margin + noise * own.standard_normal(len(margin))
    part = noise * noise / (1.0 + noise * noise)
    return torch.special.ndtr(torch.from_numpy((part * expected + (1.0 - part) * view) / sqrt(part))).numpy()


def _hardness(tokens: int, texture: float, draws: np.random.Generator) -> np.ndarray:
    """Return (T,) float64: an AR(1) process of standard normals."""
    fresh = draws.standard_normal(tokens)
    found, scale = np.empty(tokens), sqrt(1.0 - texture * texture)
    last = fresh[0]
    for i, one in enumerate(fresh):
        last = found[i] = one if i == 0 else texture * last + scale * one
    return found


def _wrong(text: Text, agreed: np.ndarray, agreement: float, own: np.random.Generator) -> np.ndarray:
    """Return wrong choices for each position and DEPTH more, (T + DEPTH, CHOICES) int64.

    agreed: (T,) int64, the distance of the first one that drafters have in common.
    """
    count = len(text.tokens)
    apart = own.integers(1, VOCAB, size=count)
    distance = np.where(own.random(count) < sqrt(agreement), agreed, apart)  # of two wrong ones, both
    first = np.concatenate((distance, own.integers(1, VOCAB, size=DEPTH)))
    distances = 1 + (first[:, None] - 1 + APART * np.arange(CHOICES)) % (VOCAB - 1)
    return (np.pad(np.asarray(text.tokens), (0, DEPTH))[:, None] + distances) % VOCAB


def _chains(tokens: tuple[int, ...], drawn: Drawn, wrong: np.ndarray) -> tuple[Chain, ...]:
    """Return the chain of DEPTH guesses after each of a text's tokens; none before the first."""
    count = len(tokens)
    sure = np.concatenate((drawn.confidences, np.repeat(drawn.confidences[-1:], DEPTH, axis=0)))
    is_right = drawn.place[:, None] == np.arange(CHOICES)
    on = _guesses(np.where(is_right, np.asarray(tokens)[:, None], wrong[:count]), sure)
    off = _guesses(wrong, sure)
    chains: list[Chain] = [()]
    ends = [*map(int, np.flatnonzero(~drawn.right)), count]
    place = 0
    for at in range(1, count):
        while ends[place] < at:
            place += 1
        turn = min(ends[place] + 1, at + DEPTH, count)  # behind the first wrong token all are
        chains.append((*on[at:turn], *off[turn : at + DEPTH]))
    return tuple(chains)


def _guesses(tokens: np.ndarray, confidences: np.ndarray) -> list[Guess]:
    """Make guesses of choices, (N, CHOICES) int64, and their confidences, float64, of N or more."""
    rows = zip(tokens.tolist(), confidences.tolist(), strict=False)
    return [Guess(t[0], c[0], t[1], c[1], tuple(zip(t[2:], c[2:], strict=True))) for t, c in rows]


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
