import logging

import pytest

from app.engine.forward import Output
from app.engine.measure import ROWS, check_exactness, measure_costs
from kernels.packed_linear import can_pack
from tests import fakes


@pytest.mark.skipif(not can_pack(), reason="without the packed operator bits depend on the batch")
@pytest.mark.parametrize("page_tokens", [16, 128])
def test_an_exact_runner_is_found_exact(page_tokens):
    runner = fakes.served(page_tokens=page_tokens)
    exactness = check_exactness(runner, fakes.VOCAB)
    assert (exactness.rows, exactness.different) == (12, 0)
    assert runner.pool.num_free == runner.pool.num_pages


def test_a_runner_whose_rows_depend_on_their_company_is_told(caplog):
    runner = fakes.served()
    logits = runner.model.logits

    def unsteady(plan):
        rows, greedy, states = logits(plan)
        return Output(rows * (1 + 1e-6 * len(plan.ids)), greedy, states)

    runner.model.logits = unsteady
    with caplog.at_level(logging.WARNING):
        exactness = check_exactness(runner, fakes.VOCAB)
        exactness.warn()
    assert exactness.different > 0 and "changed bits" in caplog.text


def test_costs_are_measured_for_all_rows_and_leave_no_page_behind():
    runner = fakes.served()
    costs = measure_costs(runner, fakes.VOCAB)
    assert all(0 < costs.seconds(rows) < 10 for rows in ROWS)
    assert 0.0 <= costs.fork_s < 10
    assert runner.pool.num_free == runner.pool.num_pages


def test_every_row_is_in_the_vocabulary():
    """A probe token outside it would take the verifier down at its start."""
    for vocab_size in (2, 3, 50, 61, 101, 257):
        runner = fakes.served(vocab_size=vocab_size, pad_token_id=None)
        assert check_exactness(runner, vocab_size).rows == 12
