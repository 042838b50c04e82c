"""Test the drawn prompts: the same for the same seed, of every domain, and none of the benchmark's."""

from itertools import islice

import pytest

from bench.prompts import PROMPTS
from training.prompts.draw import DOMAINS, prompts


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_prompt_of_the_benchmark_occurs(domain: str) -> None:
    asked = {_plain(prompt) for group in PROMPTS.values() for prompt in group}
    for seed in (0, 1, 21):  # 21: the store of phrases
        assert not asked & {_plain(prompt) for prompt in islice(prompts(domain, seed), 3000)}


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_same_seed_gives_the_same_prompts_and_another_seed_others(domain: str) -> None:
    first = list(islice(prompts(domain, 3), 200))
    assert first == list(islice(prompts(domain, 3), 200))
    assert len(set(first) & set(islice(prompts(domain, 4), 200))) < 100


def test_domains_are_those_of_the_benchmark() -> None:
    assert set(DOMAINS) == set(PROMPTS)


def _plain(prompt: str) -> str:
    """Keep letters and digits alone, so that punctuation makes no difference."""
    return "".join(character for character in prompt.lower() if character.isalnum())
