import logging
from types import SimpleNamespace

import pytest
import torch

from app.engine.cpu.equivalence import probe
from app.engine.cpu.forward import Output
from app.engine.profile.profiler import CHECKS, ROWS, check_exactness, measure_costs
from tests import fakes

CHECKED = 2 * sum(end - start for start, end in CHECKS)  # as a chain, and beside a wrong token


@pytest.mark.parametrize("page_tokens", [16, 128])
def test_an_exact_runner_is_found_exact(page_tokens):
    runner = fakes.served(page_tokens=page_tokens)
    exactness = check_exactness(runner, fakes.VOCAB)
    assert (exactness.rows, exactness.different) == (CHECKED, 0)
    assert runner.pool.num_free == runner.pool.num_pages


def test_a_runner_whose_rows_depend_on_their_batch_is_logged(caplog):
    runner = fakes.served()
    logits = runner.model.logits

    def unsteady(plan, checkpoints):
        rows, greedy, states = logits(plan, checkpoints)
        return Output(rows * (1 + 1e-6 * len(plan.ids)), greedy, states)

    runner.model.logits = unsteady
    with caplog.at_level(logging.WARNING):
        exactness = check_exactness(runner, fakes.VOCAB)
        exactness.warn()
    assert exactness.different > 0 and "changed bits" in caplog.text


@pytest.mark.parametrize("tile_rows", [2, 3, 4, 7, 16])
def test_a_difference_at_borders_of_keys_is_found(tile_rows):
    """A row's bits depend on whether its tile's first row saw the same whole blocks of 64 keys."""
    runner = fakes.served()
    logits = runner.model.logits

    def by_border(plan, checkpoints):
        rows, greedy, states = logits(plan, checkpoints)
        rows = rows.clone()
        places = {row: i for i, row in enumerate(plan.wanted)}
        for span in plan.spans:
            for i, row in enumerate(span.rows):
                first = span.position + i // tile_rows * tile_rows
                if row in places and (first + 1) // 64 != (span.position + i + 1) // 64:
                    rows[places[row]] *= 1 + 1e-6
        return Output(rows, greedy, states)

    runner.model.logits = by_border
    exactness = check_exactness(runner, fakes.VOCAB)
    assert 0 < exactness.different < exactness.rows


def test_the_check_fits_where_one_longest_sequence_does():
    """The smallest cache of a verifier holds little more than its longest sequence."""
    runner = fakes.served(pages=-(-(CHECKS[-1][1] + 64) // fakes.PAGE_TOKENS))
    assert check_exactness(runner, fakes.VOCAB).different == 0


def test_costs_are_measured_for_all_rows_and_leave_no_page_behind():
    runner = fakes.served()
    costs = measure_costs(runner, fakes.VOCAB, 512)
    assert all(0 < costs.seconds(rows) < 10 for rows in ROWS)
    assert runner.pool.num_free == runner.pool.num_pages
    assert runner.adopt(probe(500, fakes.VOCAB)) == 0, "reserved pages that were not computed are never found"


def test_the_cost_of_contexts_is_measured_without_computing_one(monkeypatch):
    """The runner's steps take 2 us a cached token and 1 us for each row, 0.2 ms a row's logits, by a fake clock."""
    clock, rows_run, wanted = [0.0], [], []

    class Timed:
        capacity_tokens = 10_000

        def forward(self, works):
            (work,) = works
            rows = len(work.tokens) + len(work.tree)
            rows_run.append(rows)
            wanted.append(1 + len(work.tree))
            clock[0] += 0.01 + 0.0008 * rows + 0.0002 * wanted[-1] + work.start * (2e-6 + 1e-6 * rows)
            return [Answer()]

        def try_reserve(self, work):
            return True

        def release(self, sequence):
            pass

        def cover(self, sequence, tokens):
            pass

        def drop(self, work):
            pass

    class Answer:
        rows = torch.zeros(1, 5)

    monkeypatch.setattr("app.engine.profile.profiler.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    costs = measure_costs(Timed(), 5, 4096)
    assert costs.reading == pytest.approx((2e-6, 1e-6, 1.0))
    assert costs.seconds(8) == pytest.approx(0.018)
    assert costs.logits_s == pytest.approx(0.0002) and costs.prompt_s(8) == pytest.approx(0.018 - 7 * 0.0002)
    assert max(rows_run) <= 96, "no prompt was read for it"
    chunks = {rows for rows, own in zip(rows_run, wanted, strict=True) if own < rows}
    assert chunks == {ROWS[-1], 96}, "logits of all rows, as in verifying, but where it asks what they cost"
    assert measure_costs(Timed(), 5, 150).reading == (0.0, 0.0, 1.0), "too short a context to tell"


def test_every_row_is_in_the_vocabulary():
    """A probe token outside the vocabulary would end the verifier at its start."""
    for vocab_size in (2, 3, 50, 61, 101, 257):
        runner = fakes.served(vocab_size=vocab_size, pad_token_id=None)
        assert check_exactness(runner, vocab_size).rows == CHECKED


def test_a_disturbed_first_row_refuses_no_model(monkeypatch):
    """All steps of one row looked slower than those of many: logits are priced at nothing."""

    def timed(runner, sequence, points, passes):
        return {(context, rows): 1.0 / rows for context, rows in points}

    monkeypatch.setattr("app.engine.profile.profiler._timed", timed)
    assert measure_costs(fakes.served(), fakes.VOCAB, 512).logits_s == 0.0
