"""Test made texts and drafts: their statistics are those that the world states."""

import numpy as np
import pytest

from lab.beam import SHAPES, right_choices, tokens_a_round
from lab.simulate.log import CHOICES, DEPTH, Log, choices_of
from lab.testbeds.texts import Wanted, auc, made, rounds, statistics
from lab.testbeds.worlds import FOLDER, Number, WorldSpec, read_world


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
    assert auc(right, sure) == pytest.approx(cosine.acceptance.auc.value, abs=0.01)
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.0)):
        own = (sure >= low) & (sure < high)
        assert right[own].mean() == pytest.approx(sure[own].mean(), abs=0.03)


@pytest.mark.parametrize("name", ["cosine-70b", "faser-32b"])
def test_later_choices_are_right_as_stated_and_calibrated(name: str) -> None:
    world = read_world(FOLDER / f"{name}.json")
    log = made(world, [Wanted(world.domains[0], 3, 100) for _ in range(100)], seed=2)
    own = log.drafters[list(world.drafters)[-1]]
    _, second, third, _ = right_choices(log, own)
    assert second == pytest.approx(world.acceptance.second.value, abs=0.03) and second > third > 0.0
    guesses = [chain[0] for chains in own.guesses for chain in chains[1:]]
    tokens = [token for text in log.texts for token in text.tokens[1:]]
    for place in range(CHOICES):
        choices = [choices_of(guess)[place] for guess in guesses]
        right = np.mean([choice == token for (choice, _), token in zip(choices, tokens, strict=True)])
        assert right == pytest.approx(np.mean([sure for _, sure in choices]), abs=0.015), place
    assert all(chances == sorted(chances)[::-1] for chances in ([c for _, c in choices_of(g)] for g in guesses))


def test_requests_differ_as_stated_and_all_together_have_the_stated_tokens_a_round() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    log, length = made(world, [Wanted("all", 3, 200) for _ in range(100)], seed=3), round(world.acceptance.length.value)
    assert statistics(log, length)["qwen3-0.6b"]["all"] == pytest.approx(world.acceptance.mixture.value, rel=0.05)
    each = []
    for text, chains in zip(log.texts, log.drafters["qwen3-0.6b"].guesses, strict=True):
        right = np.asarray([chain[0].token == token for chain, token in zip(chains[1:], text.tokens[1:], strict=True)])
        each.append(len(right) / rounds(right, length))
    low, high = np.quantile(each, [0.05, 0.95])
    assert low == pytest.approx(2.0, abs=0.4) and high == pytest.approx(6.5, abs=0.4)


def test_a_beam_gains_over_made_drafts_as_over_recorded_ones() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    log = made(world, [Wanted("all", 3, 100) for _ in range(40)], seed=4)
    chain, leaves, beam = (tokens_a_round(log, log.drafters["qwen3-0.6b"], shape) for shape in SHAPES.values())
    assert 1.05 < leaves / chain < beam / chain < 1.4


def test_a_second_choice_cannot_be_right_more_often_than_the_confidences_leave() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    spec = world.acceptance.model_copy(update={"second": Number(0.99, "too much")})
    with pytest.raises(ValueError, match="at most 0"):
        made(world.model_copy(update={"acceptance": spec}), [Wanted("all", 3, 10)], seed=1)


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
