"""Test made texts and drafts: their statistics are those that the world states."""

import numpy as np
import pytest

from lab.simulate.log import DEPTH, Log
from lab.testbeds.texts import Drawn, Wanted, auc, made, rounds, statistics
from lab.testbeds.worlds import FOLDER, WorldSpec, read_world


@pytest.fixture(scope="module")
def cosine() -> WorldSpec:
    return read_world(FOLDER / "cosine-70b.json")


@pytest.fixture(scope="module")
def log(cosine: WorldSpec) -> Log:
    return made(cosine, [Wanted(domain, 3, 1500) for domain in cosine.domains * 2], seed=5)


def firsts(log: Log, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A drafter's first guess at each token but a text's first: is it right, its confidence, and the token."""
    chains = [chain for own in log.drafters[name].guesses for chain in own[1:]]
    tokens = np.asarray([token for text in log.texts for token in text.tokens[1:]])
    guessed = np.asarray([chain[0].token for chain in chains])
    return guessed == tokens, np.asarray([chain[0].confidence for chain in chains]), guessed


def test_each_drafter_has_the_stated_tokens_a_round(cosine: WorldSpec, log: Log) -> None:
    found, spec = statistics(log, round(cosine.acceptance.length.value)), cosine.acceptance
    for name, drafter in cosine.drafters.items():
        for domain in cosine.domains:
            away = spec.elsewhere if drafter.domain else spec.mixture
            stated = spec.home if drafter.domain == domain else away
            assert found[name][domain] == pytest.approx(stated.value, rel=0.09), (name, domain)
    assert all(found["any"][domain] > spec.home.value for domain in cosine.domains)


def test_confidence_is_calibrated_and_tells_right_from_wrong_as_stated(cosine: WorldSpec, log: Log) -> None:
    right, sure, _ = firsts(log, "mixture")
    assert auc(Drawn(right, sure)) == pytest.approx(cosine.acceptance.auc.value, abs=0.01)
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.0)):
        own = (sure >= low) & (sure < high)
        assert right[own].mean() == pytest.approx(sure[own].mean(), abs=0.03)


def test_wrong_drafters_agree_as_stated_and_errors_correlate(cosine: WorldSpec, log: Log) -> None:
    (one, _, guessed), (other, _, by_other) = firsts(log, "physics"), firsts(log, "finance")
    both = ~one & ~other
    assert (guessed[both] == by_other[both]).mean() == pytest.approx(cosine.acceptance.agreement.value, abs=0.02)
    assert both.mean() > 1.1 * (~one).mean() * (~other).mean()


def test_chains_go_on_wrong_behind_their_first_wrong_token(log: Log) -> None:
    text, chains = log.texts[0], log.drafters["medicine"].guesses[0]
    assert chains[0] == () and {len(chain) for chain in chains[1:]} == {DEPTH}
    wrong_behind = 0
    for at, chain in enumerate(chains[1:-DEPTH], start=1):
        hits = [guess.token == token for guess, token in zip(chain, text.tokens[at : at + DEPTH], strict=True)]
        first = hits.index(False) if False in hits else DEPTH
        assert not any(hits[first:]), at
        assert chains[at + 1][0].token == chain[1].token or first == 0
        wrong_behind += DEPTH - first
    assert wrong_behind > 1000


def test_rounds_are_counted_as_chains_of_a_length_go() -> None:
    assert rounds(np.ones(12, bool), 3) == 3
    assert rounds(np.zeros(12, bool), 3) == 12
    assert rounds(np.asarray([True, True, False, True, True, True, True, False]), 3) == 3


def test_a_seed_makes_the_same_and_another_one_does_not(cosine: WorldSpec) -> None:
    wanted = [Wanted("physics", 3, 40)]
    one, again, other = (made(cosine, wanted, seed) for seed in (1, 1, 2))
    assert one.texts == again.texts and one.drafters == again.drafters
    assert one.texts != other.texts
