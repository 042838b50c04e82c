"""Test what stands in for a model: known texts, real pages and arrays, and a drafter that errs as often as it says."""

import time

import pytest

from app.request import Sampling
from app.stages.draft.protocol import Context
from app.state import BatchEntry, CachedSequence, Tree
from bench.scale.stand_in import FIRST_ID, StandInDrafter, StandInTarget, token_at

STEP_S = 0.01


def context(length: int, most: int = 4) -> Context:
    return Context("r", "tenant", [FIRST_ID] * length, 8, most, Sampling())


def test_a_step_takes_its_time_and_says_the_known_text():
    target = StandInTarget(STEP_S, vocab_size=8192, tokens=256, longest=128)
    sequence = CachedSequence("r", [FIRST_ID] * 20)
    work = BatchEntry(sequence, 0, sequence.tokens, Tree([1, 2], [0, 1], [0.9, 0.8], [("a",), ("a",)]), final=True)
    assert target.try_reserve(work)
    began_s = time.perf_counter()
    (rows,) = target.launch([work]).collect()
    assert time.perf_counter() - began_s >= STEP_S
    assert rows is not None
    assert rows.token(2, 22, Sampling(), []) == token_at("r", 22)
    target.accept(work, [1])
    assert (sequence.cached, len(sequence.pages)) == (21, 2)
    assert len(target.exposed_s) == 1


@pytest.mark.parametrize("rate", [0.0, 0.7, 1.0])
def test_the_drafter_is_right_as_often_as_it_says(rate: float):
    drafter = StandInDrafter(rate)
    right = tried = 0
    for length in range(8, 2008, 4):
        (draft,) = drafter.draft([context(length)])
        known = [token_at("r", length + i) for i in range(4)]
        right += sum(map(int.__eq__, draft.tokens, known))
        tried += 4
        assert draft.confidences == (rate,) * 4 and draft.base == length
    assert right / tried == pytest.approx(rate, abs=0.03)
