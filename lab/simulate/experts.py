"""Make drafters that differ as much as stated, in place of a recording's own: each has domains where it is at home.

A token is right with a chance of its own, given how hard it is, which all drafters feel alike: the
normal variables behind them correlate (a Gaussian copula). A drafter's confidence is that chance, so
it is calibrated. Texts, costs and the drafters' times stay as recorded.
"""

import random
from collections.abc import Mapping
from math import sqrt
from statistics import NormalDist

from app.state import Guess
from lab.simulate.log import DEPTH, DrafterLog, Log

CORRELATION = 0.5  # between the drafters' right tokens; recorded ones, which are nearly copies, have 0.8 and more
CERTAIN = 0.001  # no chance is nearer to 0 or 1
NORMAL = NormalDist()


def with_experts(
    log: Log, home: float, elsewhere: float, homes: Mapping[str, str], generalist: str, seed: int, shared: float
) -> Log:
    """Return the recording with experts whose tokens are right with these chances, `DEPTH` deep.

    `homes`: the expert at home in each domain. The generalist, trained on the mixture, has the mean of
    both chances everywhere. `shared`: the correlation, 0 ... 1.
    """
    hard = random.Random(seed)
    depths = [[hard.gauss(0.0, 1.0) for _ in text.tokens] for text in log.texts]
    found = {}
    for name, recorded in log.drafters.items():
        own = random.Random(f"{seed} {name}")
        guesses = []
        for text, difficulty in zip(log.texts, depths, strict=True):
            chance = home if homes.get(text.domain) == name else elsewhere
            chance = (home + elsewhere) / 2.0 if name == generalist else chance
            odds = [_chance(chance, hardness, shared) for hardness in difficulty]
            guesses.append(_chains(text.tokens, odds, log.vocab_size, own))
        found[name] = DrafterLog(guesses=tuple(guesses), token_s=recorded.token_s, read_s=recorded.read_s)
    return log.model_copy(update={"drafters": found})


def homes_of(acceptance: Mapping[str, Mapping[str, float]], generalist: str) -> dict[str, str]:
    """Return the expert at home in each domain: the one that is right there most often, the generalist apart.

    `acceptance`: by drafter and domain.
    """
    experts = {name: own for name, own in acceptance.items() if name != generalist}
    domains = {domain for own in experts.values() for domain in own}
    return {domain: max(experts, key=lambda name: experts[name][domain]) for domain in sorted(domains)}


def _chance(mean: float, hardness: float, shared: float) -> float:
    """Return the chance of a token of this hardness, a normal variable; over all tokens it is `mean`."""
    chance = NORMAL.cdf((NORMAL.inv_cdf(mean) - sqrt(shared) * hardness) / sqrt(1.0 - shared))
    return min(1.0 - CERTAIN, max(CERTAIN, chance))


def _chains(
    tokens: tuple[int, ...], odds: list[float], vocab_size: int, own: random.Random
) -> tuple[tuple[Guess, ...], ...]:
    """Return the chain after each of a text's tokens: right ones, the first wrong one, and more, all wrong then."""
    right = [own.random() < chance for chance in odds]
    wrong = [(token + own.randrange(1, vocab_size)) % vocab_size for token in tokens]
    chains: list[tuple[Guess, ...]] = [()]  # no drafter guesses before the first token
    for at in range(1, len(tokens)):
        chain, goes_on = [], True
        for i in range(at, min(at + DEPTH, len(tokens))):
            goes_on = goes_on and right[i]
            token, second = (tokens[i], wrong[i]) if goes_on else (wrong[i], tokens[i])
            chain.append(Guess(token, odds[i], second, 0.0))
        chains.append(tuple(chain))
    return tuple(chains)
