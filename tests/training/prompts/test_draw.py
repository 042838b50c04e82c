"""Test the drawn prompts: the same for the same seed, of every domain, and none of the benchmark's."""

import hashlib
from itertools import islice

import pytest

from bench.prompts import PROMPTS
from training.prompts.draw import DOMAINS, prompts

# SHA-256 of the first 3,000 prompts. Data and stores that exist were made from these: a change makes them anew.
HASHES = {
    ("code", 0): "549adf39849f035e",
    ("code", 21): "bf66c99a41bd335d",
    ("math", 0): "3e4eabb5f7ef21c2",
    ("math", 21): "5cb56a60fad170c8",
    ("chat", 0): "89d945296795cd16",
    ("chat", 21): "1473ca87caebd382",
    ("prose", 0): "cd3f102f70d7e0d0",
    ("prose", 21): "d188a0802e13457a",
    ("qa", 0): "040797e556fc05a7",
    ("qa", 21): "79d07e7933267984",
}


@pytest.mark.parametrize(("domain", "seed"), HASHES)
def test_the_prompts_of_a_seed_stay_the_same(domain: str, seed: int) -> None:
    text = "\n".join(islice(prompts(domain, seed), 3000))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == HASHES[domain, seed]


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_prompt_of_the_benchmark_occurs(domain: str) -> None:
    asked = {_plain(prompt) for group in PROMPTS.values() for prompt in group}
    for seed in (0, 1, 21):  # 21: the store of phrases
        assert not asked & {_plain(prompt) for prompt in islice(prompts(domain, seed), 3000)}


def test_domains_are_those_of_the_benchmark() -> None:
    assert set(DOMAINS) == set(PROMPTS)


def _plain(prompt: str) -> str:
    """Keep letters and digits alone, so that punctuation makes no difference."""
    return "".join(character for character in prompt.lower() if character.isalnum())
