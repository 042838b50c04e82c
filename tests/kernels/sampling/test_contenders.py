"""Test that tokens are those of the reference, though noise is drawn for few."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling.contenders import FAR, LEAST, MOST, contenders, target_token
from kernels.sampling.gumbel_noise import gumbel, gumbel_noise_reference
from kernels.sampling.target_token import Choice, filtered, target_token_reference

WORDS = 5000


def logits_of(seed: int, spread: float = 3.0, words: int = WORDS) -> torch.Tensor:
    found = torch.randn(words, generator=torch.Generator().manual_seed(seed)) * spread
    found[seed % words] += 4.0 * spread
    return found


def test_noise_has_these_bounds() -> None:
    least, most = gumbel(torch.tensor([0, 2**32 - 1])).tolist()
    assert (least, most) == (pytest.approx(LEAST, abs=1e-4), pytest.approx(MOST, abs=1e-4))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.3, 1.0, 3.0, 8.0]),
    st.floats(0.01, 3.0),
    st.sampled_from([1.0, 0.999, 0.95, 0.5, 0.01]),
    st.sampled_from([0, 1, 3, 50, 4999]),
    st.sampled_from([0.0, 0.02, 0.5, 1.0]),
)
def test_a_token_is_that_of_the_reference(
    seed: int, spread: float, temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    logits, choice = logits_of(seed, spread), Choice(temperature, top_p, top_k, min_p, seed, seed % 3)
    assert target_token(logits, choice, seed % 4096) == target_token_reference(logits, choice, seed % 4096)


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 0.7])
def test_equal_and_masked_logits(temperature: float) -> None:
    logits = torch.full((300,), -torch.inf)
    assert target_token(logits.index_fill(0, torch.tensor([7]), -90.0), Choice(temperature, 0.9, 0, 0.1, 5), 3) == 7
    logits[[20, 30, 299]] = 2.0
    for seed in range(20):
        for filters in ((1.0, 0, 0.0), (0.5, 2, 0.5), (1.0, 1, 0.0)):
            choice = Choice(temperature, *filters, seed)
            assert target_token(logits, choice, 3) == target_token_reference(logits, choice, 3)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.floats(0.05, 2.0), st.sampled_from([(1.0, 0), (0.95, 0), (1.0, 5)]))
def test_the_two_best_of_some_tokens_have_their_scores_and_the_mass_of_all(
    seed: int, temperature: float, filters: tuple[float, int]
) -> None:
    logits, tokens = logits_of(seed, words=400), torch.arange(400) * 7 + 3
    choice = Choice(temperature, *filters, 0.0, seed)
    found = contenders(logits, choice, 11, tokens, best=2)
    kept, z = filtered(logits, choice)
    scores = (z + gumbel_noise_reference(tokens[kept], seed, 0, 11)).double()
    best = scores.topk(min(2, len(scores)))
    order = np.argsort(-found.scores)[:2]
    near = best.indices[z[best.indices] > z.max() - FAR / temperature]
    assert found.ids[order].tolist()[: len(near)] == kept[near].tolist()
    assert found.scores[order][: len(near)] == pytest.approx(scores[near].numpy(), abs=1e-4)
    assert found.log_mass == pytest.approx(float((scores * temperature).logsumexp(0)), abs=0.02)


def test_noise_is_drawn_for_few() -> None:
    logits = logits_of(1, words=50_000)
    assert len(contenders(logits, Choice(0.8, 1.0, 0, 0.0, 1), 5).ids) < 20
