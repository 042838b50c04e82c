"""Test what drafting is expected to take: by batch, depth and what nodes reported of earlier drafts."""

from math import inf, nan

import pytest

from app.messages import DraftReport
from app.recent import RECENT
from app.speculation.draft_costs import DEFAULT_HOP_S, FEW_UNREAD, DraftCosts, TableCosts, is_sound
from tests.app.speculation.candidates import drafter


def test_a_wait_is_the_hop_and_each_guess() -> None:
    costs = drafter(step_s=0.003, hop_s=0.002)
    assert costs.seconds(1, 4) == pytest.approx(0.014)
    assert costs.seconds(1, 8) == pytest.approx(0.026), "longer drafts than any seen"
    assert costs.span(1, 3) == pytest.approx([0.0, 0.005, 0.008, 0.011])
    assert (costs.seconds(0, 4), costs.seconds(1, 0)) == (0.0, 0.0)
    assert costs.guess_s(1, 4) == pytest.approx(0.012)


def test_before_any_draft_a_hop_is_expected() -> None:
    costs = DraftCosts()
    assert not costs.is_known and costs.seconds(4, 8) == DEFAULT_HOP_S and costs.read_s(1000) == 0.0


def test_a_batch_that_was_not_seen_takes_what_the_nearest_one_takes() -> None:
    costs = DraftCosts()
    for batch, step_s in ((1, 0.001), (8, 0.004)):
        for _ in range(RECENT):
            costs.update(batch, 4, 4 * step_s, [DraftReport(guess_s=4 * step_s, guessed=4)])
    assert costs.guess_s(2, 1) == pytest.approx(0.001)
    assert costs.guess_s(16, 1) == pytest.approx(0.004)


def test_tokens_guessed_ahead_shorten_the_wait_and_not_a_guess() -> None:
    costs = DraftCosts()
    for _ in range(60):
        costs.update(1, 4, 0.007, [DraftReport(guess_s=0.006, guessed=2)])
    assert costs.guess_s(1, 4) == pytest.approx(0.012)
    assert costs.seconds(1, 4) == pytest.approx(0.007)


def test_one_frozen_process_does_not_make_drafting_dear() -> None:
    costs = drafter(step_s=0.003, hop_s=0.002)
    costs.update(1, 4, 60.0, [DraftReport(guess_s=50.0, guessed=4)])
    assert costs.seconds(1, 4) == pytest.approx(0.014)


def test_the_slowest_node_of_a_round_counts() -> None:
    costs = DraftCosts()
    costs.update(1, 4, 0.050, [DraftReport(guess_s=0.004, guessed=4), DraftReport(guess_s=0.040, guessed=4)])
    assert (costs.guess_s(1, 4), costs.hop_s) == (pytest.approx(0.040), pytest.approx(0.010))


def test_a_step_that_began_before_the_drafts_came_is_no_part_of_the_hop() -> None:
    """They are found after it; that it began without them shows only what they took at least."""
    costs, report = drafter(step_s=0.003, hop_s=0.002), [DraftReport(guess_s=0.012, guessed=4)]
    for _ in range(RECENT):
        costs.update(1, 4, 0.050, report, launched_s=0.001)
    assert costs.hop_s == pytest.approx(0.002)
    for _ in range(RECENT):
        costs.update(1, 4, 0.050, report, launched_s=0.030)
    assert costs.hop_s == pytest.approx(0.018)


def test_a_few_tokens_which_take_as_long_as_a_guess_say_little_of_a_text() -> None:
    costs = DraftCosts()
    for tokens, read_s in ((1000, 1.0), (20, 0.3), (20, 0.3), (20, 0.3)):
        costs.update_reading(DraftReport(read_s=read_s, read_tokens=tokens))
    assert costs.read_s(500) == pytest.approx(0.5)


def test_reading_is_neither_guess_nor_hop() -> None:
    costs = DraftCosts()
    costs.update(1, 4, 0.115, [DraftReport(guess_s=0.012, guessed=4, read_s=0.100, read_tokens=1000)])
    assert costs.seconds(1, 4) == pytest.approx(0.015)
    assert costs.read_s(2000) == pytest.approx(0.2)
    assert costs.read_s(FEW_UNREAD) == 0.0, "read along with the first guess"


def test_a_version_without_reports_teaches_the_whole_wait() -> None:
    costs = DraftCosts()
    for _ in range(RECENT):
        costs.update(2, 4, 0.041, [])
    assert costs.seconds(2, 4) == pytest.approx(0.041)


def test_each_split_of_the_machine_has_guesses_of_its_own() -> None:
    costs = drafter(step_s=0.003, hop_s=0.002)
    costs.expect(1, slowdown=2.0)
    other = costs.at(1)
    assert other.guess_s(1, 4) == pytest.approx(0.024), "expected before any draft"
    other.update(1, 4, 0.042, [DraftReport(guess_s=0.040, guessed=4)])
    assert (costs.at(1).guess_s(1, 4), costs.guess_s(1, 4)) == (pytest.approx(0.040), pytest.approx(0.012))
    costs.use(1)
    assert costs.split == 1 and costs.guess_s(1, 4) == pytest.approx(0.040)


@pytest.mark.parametrize(
    "report",
    [
        DraftReport(guess_s=-1.0),
        DraftReport(guess_s=nan),
        DraftReport(guess_s=inf),
        DraftReport(guess_s=1e9),
        DraftReport(read_s=-0.1),
        DraftReport(read_s=nan),
        DraftReport(guess_s=0.06, read_s=0.06),
        DraftReport(guessed=-1),
        DraftReport(read_tokens=-1),
    ],
)
def test_a_report_that_cannot_be_true_is_not_sound(report: DraftReport) -> None:
    assert not is_sound(report, came_s=0.1)


def test_a_sound_lie_bends_no_cost_beyond_the_wait_that_came() -> None:
    costs = DraftCosts()
    lie = DraftReport(guess_s=0.0, guessed=10**9, read_s=0.0, read_tokens=10**9)
    assert is_sound(lie, came_s=0.1)
    for _ in range(60):
        costs.update(1, 4, 0.1, [lie])
    assert costs.seconds(1, 4) == pytest.approx(0.1) and costs.read_s(1000) == 0.0


@pytest.mark.parametrize("nonsense", [-1.0, nan, inf])
def test_nonsense_teaches_nothing(nonsense: float) -> None:
    models, tables = DraftCosts(), TableCosts()
    models.update(1, 4, nonsense, [])
    models.update(0, 4, 0.1, [])
    models.update(1, 0, 0.1, [])
    tables.update(1, nonsense)
    assert not models.is_known and not tables.is_known


def test_tables_take_as_long_for_each_sequence() -> None:
    costs = TableCosts()
    assert costs.seconds(4, 8) == 0.0
    costs.update(4, 0.0004)
    assert costs.seconds(8, 1) == costs.seconds(8, 9) == pytest.approx(0.0008)
    assert costs.span(8, 2) == pytest.approx([0.0, 0.0008, 0.0008])


def test_guesses_take_longer_where_the_drafters_asked_share_cores() -> None:
    costs = DraftCosts()
    for drafters, guess_s in ((4, 0.008), (1, 0.002)):
        for _ in range(9):
            costs.update(1, 2, guess_s, [DraftReport(guess_s=guess_s, guessed=2)], drafters=drafters)
    assert costs.of(4).guess_s(1, 2) == pytest.approx(0.008) and costs.of(1).guess_s(1, 2) == pytest.approx(0.002)


def test_the_hop_grows_with_the_drafters_asked() -> None:
    costs = DraftCosts()
    for drafters, hop_s in ((4, 0.008), (1, 0.002)):
        for _ in range(9):
            costs.update(1, 2, hop_s + 0.002, [DraftReport(guess_s=0.002, guessed=2)], drafters=drafters)
        if drafters == 4:
            assert costs.of(4).hop_s == pytest.approx(0.008)
            assert costs.of(1).hop_s == pytest.approx(0.002), "fewer look cheap until they were asked"
    costs.ask(4)
    assert costs.hop_s == pytest.approx(0.008) and costs.seconds(1, 2) == pytest.approx(0.01, rel=0.01)
    assert costs.of(2).hop_s == pytest.approx(0.004)


def test_a_slow_round_of_few_drafters_does_not_make_more_of_them_cheap() -> None:
    costs = DraftCosts()
    for drafters, hop_s in ((1, 0.02), (2, 0.001)):
        costs.update(1, 2, hop_s + 0.002, [DraftReport(guess_s=0.002, guessed=2)], drafters=drafters)
    assert costs.of(8).hop_s >= costs.of(1).hop_s
