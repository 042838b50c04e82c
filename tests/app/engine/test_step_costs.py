import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.step_costs import Reading, StepCosts

points = st.dictionaries(st.integers(1, 200), st.floats(1e-4, 1.0), min_size=1, max_size=8)
MEASURED = {1: 0.045, 2: 0.052, 4: 0.057, 8: 0.066, 16: 0.083, 32: 0.115}


@given(points, st.integers(0, 3000))
def test_more_rows_never_cost_less(measured: dict[int, float], rows: int) -> None:
    costs = StepCosts(measured)
    assert 0.0 < costs.seconds(rows) <= costs.seconds(rows + 1) * (1 + 1e-12)


def test_measured_points_are_met_and_joined_by_lines() -> None:
    costs = StepCosts(MEASURED)
    assert [costs.seconds(rows) for rows in MEASURED] == pytest.approx(list(MEASURED.values()))
    assert costs.seconds(12) == pytest.approx((0.066 + 0.083) / 2)
    assert costs.seconds(64) == pytest.approx(0.115 + 32 * (0.115 - 0.083) / 16)
    assert costs.seconds(4096) == pytest.approx(0.115 + 4064 * (0.115 - 0.083) / 16)


@given(points, st.integers(0, 3000), st.integers(0, 50))
def test_a_span_is_the_single_values(measured: dict[int, float], rows: int, count: int) -> None:
    costs = StepCosts(measured, 1.5)
    assert costs.span(rows, count) == [costs.seconds(n) for n in range(rows, rows + count)]


def test_a_step_stays_a_step() -> None:
    costs = StepCosts({1: 0.05, 2: 0.09, 32: 0.09, 33: 0.13})
    assert costs.seconds(32) == costs.seconds(2) == pytest.approx(0.09)
    assert costs.seconds(33) == pytest.approx(0.13)


@given(points, st.floats(0.2, 5.0))
def test_step_costs_survive_json(measured: dict[int, float], ratio: float) -> None:
    costs = StepCosts(measured, ratio, logits_s=1e-5)
    again = StepCosts.loads(costs.dumps())
    assert [again.seconds(n) for n in range(300)] == [costs.seconds(n) for n in range(300)]
    assert again.prompt_s(64) == costs.prompt_s(64)


def test_follows_a_machine_that_slows_down_and_shrugs_at_an_outlier() -> None:
    costs = StepCosts(MEASURED)
    costs.correct(8, 100.0)
    assert costs.seconds(8) < 0.066 * 1.2
    for _ in range(100):
        costs.correct(8, 0.132)
    assert costs.seconds(8) == pytest.approx(0.132, rel=0.01)
    assert costs.seconds(1) == pytest.approx(0.090, rel=0.2), "it is the machine, not rows alone"


def test_steps_of_many_sizes_tell_the_cost_of_rows() -> None:
    """One row takes the measured time, and further rows twice theirs."""
    costs = StepCosts(MEASURED)
    for i in range(600):
        rows = (1, 4, 1, 8, 2)[i % 5]
        costs.correct(rows, 0.045 + 2 * (MEASURED[rows] - 0.045))
    assert costs.seconds(1) == pytest.approx(0.045, rel=0.02)
    assert costs.seconds(8) == pytest.approx(0.087, rel=0.02)
    assert StepCosts.loads(costs.dumps()).seconds(8) == costs.seconds(8)


def test_a_prompts_rows_cost_less_by_their_logits() -> None:
    costs = StepCosts(MEASURED, logits_s=0.0004)
    assert costs.prompt_s(1) == costs.seconds(1) == 0.045
    assert costs.prompt_s(32) == costs.seconds(32, 31) == pytest.approx(0.115 - 31 * 0.0004)
    assert costs.seconds(32, 20) == pytest.approx(0.115 - 20 * 0.0004)
    assert StepCosts(MEASURED, logits_s=0.1).prompt_s(32) == 0.045, "never less than a row"
    for _ in range(100):
        costs.correct(1, 0.090)
    assert costs.logits_s == pytest.approx(0.0008, rel=0.2), "they slow down with the machine"


def test_steps_that_read_prompts_do_not_make_rows_look_cheap() -> None:
    costs = StepCosts(MEASURED, logits_s=0.0004)
    before = costs.span(1, 16)
    for _ in range(50):
        costs.correct(4, MEASURED[4])
        costs.correct(33, costs.seconds(33) - 30 * 0.0004, silent=30)
    assert costs.span(1, 16) == pytest.approx(before)


def test_stored_costs_without_contexts_price_them_at_nothing() -> None:
    old = StepCosts.loads('{"points": [[1, 0.03], [64, 0.033]], "ratio": 1.0}')
    assert old.reading.seconds(100_000, 8) == 0.0
    new = StepCosts(MEASURED, reading=Reading(4e-6, 2e-6), reading_ratio=1.5)
    assert StepCosts.loads(new.dumps()).reading == new.reading == Reading(6e-6, 3e-6)
    slower = StepCosts.loads(new.dumps(), slowdown=2.0)
    assert slower.reading == Reading(1.2e-5, 6e-6)
    assert slower.seconds(8) == 2 * new.seconds(8)


def test_the_costs_of_contexts_and_rows_are_corrected_apart() -> None:
    """Reading takes twice the measured time, rows take theirs."""
    costs = StepCosts(MEASURED, reading=Reading(4e-6, 2e-6))
    for i in range(300):
        context = (100, 3000, 8000)[i % 3]
        took_s = 0.066 + 2 * Reading(4e-6, 2e-6).seconds(context, 8)
        costs.correct(8, took_s, costs.reading.seconds(context, 8))
    assert costs.seconds(8) == pytest.approx(0.066, rel=0.05)
    assert costs.reading.seconds(8000, 8) == pytest.approx(0.32, rel=0.1)


@pytest.mark.parametrize("nonsense", [0.0, -1.0, float("nan"), float("inf")])
def test_nonsense_measurements_change_nothing(nonsense: float) -> None:
    costs = StepCosts(MEASURED)
    costs.correct(8, nonsense)
    assert costs.ratio == 1.0


@pytest.mark.parametrize("bad", [{}, {0: 1.0}, {1: 0.0}, {1: float("nan")}])
def test_step_costs_without_sound_points_are_refused(bad: dict[int, float]) -> None:
    with pytest.raises(ValueError):
        StepCosts(bad)


def test_a_split_learns_apart_and_is_expected_to_be_slower_as_measured() -> None:
    costs = StepCosts({1: 0.01, 16: 0.02})
    costs.expect(1, 1.5)
    assert costs.at(1).seconds(16) == pytest.approx(1.5 * costs.seconds(16))
    for _ in range(60):
        costs.correct(16, 0.06)
    costs.at(0).correct(16, 0.07)
    assert costs.last_s == 0.07, "a step has a copy"
    assert costs.at(1).seconds(16) == pytest.approx(1.5 * costs.seconds(16)), "untried, it follows the machine"
    costs.use(1)
    before = costs.at(0).seconds(16)
    for _ in range(60):
        costs.correct(16, 0.04)
    assert costs.seconds(16) == costs.at(1).seconds(16) == pytest.approx(0.04, rel=0.05)
    assert costs.at(0).seconds(16) == before, "not charged to another"


def test_contexts_are_read_side_by_side_or_one_after_the_other() -> None:
    steps = [(4000, 2), (100, 1), (900, 3)]
    one_by_one, beside = Reading(4e-6, 1e-8), Reading(4e-6, 1e-8, 0.1)
    assert one_by_one.step_s(steps) == pytest.approx(sum(one_by_one.seconds(*pair) for pair in steps))
    assert beside.step_s(steps) == pytest.approx(4000 * 4e-6 + 10_800 * 1e-8), "the longest alone"
    assert beside.step_s([(100, 1)] * 64) == pytest.approx(640 * 4e-6 + 6400 * 1e-8), "each token's share"
    assert beside.step_s([]) == 0.0
    costs = StepCosts(MEASURED, reading=beside)
    assert StepCosts.loads(costs.dumps(), 2.0).reading == pytest.approx((8e-6, 2e-8, 0.1)), "a share keeps its size"
    older = costs.dumps().replace(", 0.1]", "]")
    assert StepCosts.loads(older).reading == one_by_one
    with pytest.raises(ValueError, match="share"):
        StepCosts(MEASURED, reading=Reading(1e-6, 0.0, 1.5))
