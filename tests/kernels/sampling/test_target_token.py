import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from kernels.sampling.gumbel_noise import gumbel_noise_reference
from kernels.sampling.target_token import Choice, Row, filtered, shaped, target_token_reference

GREEDY = Choice(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


def choice(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0, seed: int = 0) -> Choice:
    return Choice(temperature, top_p, top_k, min_p, seed)


def kept_by_sorting(logits: list[float], c: Choice) -> list[int]:
    """Apply the filters by their definition: sort, cut, and keep what equals the last one kept."""
    z = [value / c.temperature for value in logits]
    kept = sorted(range(len(z)), key=lambda i: (-z[i], i))
    if 0 < c.top_k < len(kept):
        kept = [i for i in kept if z[i] >= z[kept[c.top_k - 1]]]
    weight = {i: math.exp(z[i] - z[kept[0]]) for i in kept}
    total, mass, last = sum(weight.values()), 0.0, kept[-1]
    for i in kept:
        mass += weight[i] / total
        assume(abs(mass - c.top_p) > 1e-6)  # on the edge rounding decides
        if mass >= c.top_p:
            last = i
            break
    if c.top_p < 1.0:
        kept = [i for i in kept if z[i] >= z[last]]
    assume(all(abs(weight[i] - c.min_p) > 1e-6 for i in kept))
    return sorted(i for i in kept if weight[i] >= c.min_p)


FILTERS = {
    "temperature": st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    "top_p": st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    "top_k": st.integers(0, 12),
    "min_p": st.one_of(st.just(0.0), st.floats(0.001, 0.99)),
}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=24), st.fixed_dictionaries(FILTERS))
def test_filters_keep_what_sorting_keeps(quarters, filters):
    logits = [quarter / 4 for quarter in quarters]  # exact in float32, with many ties
    c = choice(**filters)
    kept, z = filtered(torch.tensor(logits), c)
    assert kept.tolist() == kept_by_sorting(logits, c)
    assert z.tolist() == [logits[i] / c.temperature for i in kept.tolist()]


@pytest.mark.parametrize("vocab_size", [7, 255, 256, 257, 3000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_filters_keep_what_transformers_keeps(vocab_size, spread):
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * spread
    for temperature, top_k, top_p, min_p in [(0.7, 5, 0.9, 0.05), (1.3, 0, 0.95, 0.0), (1.0, 40, 0.5, 0.0)]:
        warpers = LogitsProcessorList(
            [TemperatureLogitsWarper(temperature), TopPLogitsWarper(top_p), MinPLogitsWarper(min_p)]
        )
        if top_k:
            warpers.insert(1, TopKLogitsWarper(top_k))
        expected = torch.nonzero(warpers(None, logits[None])[0] > -torch.inf).squeeze(-1)
        kept, _ = filtered(logits, choice(temperature, top_p, top_k, min_p))
        assert kept.tolist() == expected.tolist()


def test_equal_tokens_stay_or_go_together():
    logits = torch.tensor([1.0, 3.0, 3.0, 3.0, 0.0])
    assert filtered(logits, choice(top_k=2))[0].tolist() == [1, 2, 3]
    assert filtered(logits, choice(top_p=0.1))[0].tolist() == [1, 2, 3]


def test_ties_go_to_the_lowest_id():
    for first in range(40):
        logits = torch.zeros(50)
        logits[[first, first + 3, 49]] = 2.0
        assert target_token_reference(logits, GREEDY, position=0) == first


@pytest.mark.parametrize("position", [0, 1, 5000])
def test_a_sampled_token_is_the_argmax_of_logits_and_noise(position):
    logits = torch.randn(300, generator=torch.Generator().manual_seed(1))
    noisy = logits / 0.8 + gumbel_noise_reference(torch.arange(300), 11, 0, position)
    assert target_token_reference(logits, choice(temperature=0.8, seed=11), position) == int(noisy.argmax())


def test_noise_belongs_to_the_token_and_not_to_its_place_among_those_kept():
    logits = torch.randn(300, generator=torch.Generator().manual_seed(2))
    for seed in range(50):
        free = target_token_reference(logits, choice(seed=seed), 3)
        rank = int((logits > logits[free]).sum()) + 1
        assert target_token_reference(logits, choice(top_k=rank, seed=seed), 3) == free


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.floats(1e-300, 1e-3), st.integers(0, 1000), st.sampled_from([0.5, 1.0]), st.sampled_from([0, 3]))
def test_the_lowest_temperatures_are_greedy(temperature, seed, top_p, top_k):
    logits = torch.tensor([-3.0, 70.0, 0.0, 71.0, 70.5])
    assert target_token_reference(logits, choice(temperature, top_p, top_k, seed=seed), 0) == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_masked_token_is_never_chosen(temperature):
    logits = torch.full((8,), -torch.inf)
    logits[[2, 5]] = torch.tensor([-90.0, -91.0])
    for top_k, top_p, min_p in [(0, 1.0, 0.0), (5, 0.9, 0.1), (1, 0.01, 1.0)]:
        for seed in range(20):
            assert target_token_reference(logits, choice(temperature, top_p, top_k, min_p, seed), 4) in (2, 5)


def test_input_stays_as_it_was():
    logits = torch.randn(64, generator=torch.Generator().manual_seed(3))
    before = logits.clone()
    target_token_reference(logits, choice(0.5, 0.9, 10, 0.1), 3)
    edits = {"frequency_penalty": 1.0, "presence_penalty": 0.5, "bias": {3: 9.0}, "allowed": (1, 3)}
    shaped(logits, Row(choice(0.0), 3, {1: 2, 2: 1}, **edits))
    assert torch.equal(logits, before)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    history=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    frequency=st.sampled_from([-2.0, 0.0, 0.75]),
    presence=st.sampled_from([-1.0, 0.0, 0.5]),
    repetition=st.sampled_from([0.5, 1.0, 2.0]),
    bias=st.dictionaries(st.integers(0, 9), st.integers(-100, 100).map(float), max_size=4),
    allowed=st.one_of(st.none(), st.sets(st.integers(0, 9), min_size=1)),
    is_mask=st.booleans(),
)
def test_shaping_is_repetition_then_bias_then_penalties_then_mask(
    history, frequency, presence, repetition, bias, allowed, is_mask
):
    logits = [0.25 * (i - 5) for i in range(10)]
    repeated = [
        logit if i not in history else logit / repetition if logit > 0 else logit * repetition
        for i, logit in enumerate(logits)
    ]
    expected = [
        logit + bias.get(i, 0.0) - history.count(i) * frequency - (i in history) * presence
        if allowed is None or i in allowed
        else -math.inf
        for i, logit in enumerate(repeated)
    ]
    row = Row(
        choice(0.0),
        len(history),
        Counter(history),
        frequency_penalty=frequency,
        presence_penalty=presence,
        repetition_penalty=repetition,
        bias=bias,
        allowed=None if allowed is None or is_mask else tuple(allowed),
        mask=np.isin(np.arange(10), list(allowed)) if allowed is not None and is_mask else None,
    )
    assert shaped(torch.tensor(logits), row).tolist() == expected
