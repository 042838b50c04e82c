"""Check that sampled texts have the target's own distribution: many seeds against enumeration.

Speculation is on. The reference probabilities come from the unmodified model, through transformers'
own warpers; the statistic is chi-square over the first two or three tokens together, so that both
each token and its dependence on the last count.
"""

import math

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from app.policy import Policy
from app.request import Sampling
from tests import fakes
from tests.fakes import Book, characters, record

VOCAB = 5
PLAIN = fakes.tiny(vocab_size=VOCAB)
SERVED = fakes.served(vocab_size=VOCAB, pages=512).model
PROMPT = [1, 4, 2, 2, 0, 3]
SEEDS = 640


@torch.inference_mode()
def exact(length: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Return the probability of every possible text of this length."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    warpers.append(TopPLogitsWarper(sampling.top_p))
    found = {(): 1.0}
    for _ in range(length):
        texts = list(found)
        logits = PLAIN(torch.tensor([[*PROMPT, *text] for text in texts])).logits[:, -1]
        p = warpers(None, logits).double().softmax(-1).tolist()
        found = {
            (*text, token): found[text] * p[i][token]
            for i, text in enumerate(texts)
            for token in range(VOCAB)
            if p[i][token] > 0
        }
    return found


def sampled(length: int, sampling: Sampling, drafters: tuple[str, ...] = ("wrong", "random")) -> list[tuple[int, ...]]:
    """Return a text for each of many seeds, run in batches with drafters that are sometimes right."""
    cast = characters(Book(), VOCAB)
    runner, drafts = fakes.runner(SERVED, pages=512), Policy(min_draft_tokens=1)  # on a machine that stalls, too
    local = fakes.pipeline(runner, [cast[name] for name in drafters], vocab_size=VOCAB, policy=drafts)
    found, accepted = [], 0
    for first in range(0, SEEDS, 160):
        records = [
            record(PROMPT, length + 1, request_id=f"r{seed}", sampling=sampling.model_copy(update={"seed": seed}))
            for seed in range(first, first + 160)
        ]
        found += [tuple(text[:length]) for text in fakes.texts(local, *records)]  # one more: the last is never drafted
        accepted += sum(local.store.snapshot(one.id).stats.accepted for one in records)
    assert accepted > SEEDS / 20, "some of what is committed was drafted"
    return found


def excess(texts: list[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Return chi-square in deviations above its mean.

    Texts expected less than five times count as one cell.
    """
    counts = dict.fromkeys(expected, 0)
    for text in texts:
        counts[text] += 1  # KeyError: a text that cannot be
    common = [text for text, p in expected.items() if p * len(texts) >= 5]
    cells = [(counts[text], expected[text] * len(texts)) for text in common]
    rest = 1.0 - sum(expected[text] for text in common)
    if rest * len(texts) >= 1:
        cells.append((len(texts) - sum(counts[text] for text in common), rest * len(texts)))
    chi_square = sum((count - mean) ** 2 / mean for count, mean in cells)
    freedom = len(cells) - 1
    return (chi_square - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("length", "sampling"),
    [
        (3, Sampling(temperature=1.0)),
        (2, Sampling(temperature=0.6)),
        (2, Sampling(temperature=2.0, top_p=0.8)),
        (3, Sampling(temperature=1.2, top_k=4, top_p=0.9)),
    ],
)
def test_sampled_texts_have_the_targets_distribution(length, sampling):
    expected = exact(length, sampling)
    assert sum(expected.values()) == pytest.approx(1.0)
    texts = sampled(length, sampling)
    assert len(set(texts)) > 7, "a distribution worth comparing"
    assert excess(texts, expected) < 4


def test_the_statistic_tells_a_temperature_from_another():
    """A test that cannot fail would prove nothing."""
    texts = sampled(2, Sampling(temperature=1.0))
    assert excess(texts, exact(2, Sampling(temperature=1.5))) > 4
