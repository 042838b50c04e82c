"""Test the likeliest tokens; run by ../test_device.py, in a process of its own."""

import random

import pytest
import torch

from kernels.sampling.choices import pack_rows
from kernels.sampling.target_token import Choice, Row
from kernels.sampling.top_logprobs import top_logprobs, top_logprobs_reference
from tests.kernels.device.places import DEVICE, DTYPES
from tests.kernels.device.rows import VOCABULARIES, row


def check(logits, rows, n):
    found = top_logprobs(logits.to(DEVICE), pack_rows(rows, logits.shape[1], DEVICE).edits, n)
    tokens, logprobs = top_logprobs_reference(logits, rows, n)
    torch.testing.assert_close(found[1].cpu(), logprobs, rtol=1e-5, atol=1e-5)
    exists = logprobs > -torch.inf
    assert torch.equal(found[0].cpu()[exists], tokens[exists])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_the_likeliest_tokens_equal_the_references(vocab_size, edited, dtype):
    draw = random.Random(vocab_size)
    for num_rows, n in ((1, 20), (3, 5), (2, 1)):
        logits = (torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(n)) * 3).to(dtype)
        check(logits, [row(draw, vocab_size, edited=edited) for _ in range(num_rows)], n)


def test_equal_tokens_come_by_rising_id():
    logits = torch.zeros(1, 4100)
    logits[0, [4000, 2060, 3]] = 2.0
    check(logits, [Row(Choice(0.0, 1.0, 0, 0.0, 0), 0, bias={2: 2.0, 4099: 2.0})], 20)
