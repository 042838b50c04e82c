import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.calibration import MAX_DRAFTERS, Calibration, RawConfidence
from app.messages import Draft


def draft(tokens: list[int], parents: list[int] | None = None) -> Draft:
    return Draft(
        request_id="r",
        base=1,
        drafter="a",
        tokens=tuple(tokens),
        parents=tuple(range(len(tokens)) if parents is None else parents),
        confidences=tuple(i / 10 for i in range(len(tokens))),
    )


@settings(deadline=None)  # the first one compiles
@given(st.floats(0, 1))
def test_an_unknown_drafters_confidence_is_kept(confidence: float) -> None:
    assert Calibration().value("new", confidence) == pytest.approx(confidence, abs=0.0011)


@pytest.mark.parametrize("truth", [lambda c: c * c, lambda c: 0.1, lambda c: 0.3 + 0.7 * c, lambda c: 1 - c])
def test_learns_the_truth_behind_confidence(truth) -> None:  # type: ignore[no-untyped-def]
    rng, calibration = random.Random(1), Calibration()
    for _ in range(20_000):
        confidence = rng.random()
        calibration.update("a", confidence, rng.random() < truth(confidence))
    for confidence in (0.1, 0.3, 0.5, 0.7, 0.9):
        assert calibration.value("a", confidence) == pytest.approx(truth(confidence), abs=0.12)
    report = calibration.report()["a"]
    assert report.observations == 20_000
    assert report.calibrated_error < 0.06
    assert report.calibrated_error < report.raw_error


def test_a_few_observations_move_a_calibration_little() -> None:
    calibration = Calibration()
    calibration.update("a", 0.9, False)
    assert 0.75 < calibration.value("a", 0.9) < 0.9


def test_calibration_forgets_a_drafters_past() -> None:
    calibration = Calibration()
    for accepted in (True, False):
        for _ in range(2000):
            calibration.update("a", 0.5, accepted)
    assert calibration.value("a", 0.5) < 0.1


@given(st.lists(st.tuples(st.floats(), st.booleans()), max_size=50), st.floats(0, 1))
def test_values_are_probabilities(seen: list[tuple[float, bool]], confidence: float) -> None:
    calibration = Calibration()
    for value, accepted in seen:
        calibration.update("a", value, accepted)
    assert 0.0 < calibration.value("a", confidence) < 1.0
    assert all(math.isfinite(report.raw_error) for report in calibration.report().values())


def test_names_off_the_wire_cannot_fill_the_memory() -> None:
    calibration = Calibration()
    for i in range(MAX_DRAFTERS + 50):
        calibration.update(str(i), 0.5, True)
    assert len(calibration.report()) == MAX_DRAFTERS


def observations(*drafts: Draft, committed: list[int]) -> dict[str, int]:
    calibration = Calibration()
    calibration.update_from_drafts(drafts, committed)
    return {name: report.observations for name, report in calibration.report().items()}


def test_only_nodes_below_a_right_parent_are_learnt_from() -> None:
    assert observations(draft([7, 8, 9, 1]), committed=[7, 8, 5, 1]) == {"a": 3}
    assert observations(draft([7, 8, 9]), committed=[7]) == {"a": 1}
    assert observations(draft([7, 8, 9]), committed=[]) == {}


def test_a_malformed_draft_teaches_up_to_its_fault() -> None:
    assert observations(draft([7, 8, 9], [0, 5, 1]), committed=[7, 8, 9]) == {"a": 1}
    assert observations(draft([7, 2**70, 9], [0, 1, 1]), committed=[7, 9]) == {"a": 3}
    assert observations(draft([7, 8, 9], [0, -(2**70), 1]), committed=[7, 8]) == {"a": 1}
    assert observations(replace(draft([7, 8, 9]), confidences=(0.5,)), committed=[7, 8]) == {"a": 1}
    assert observations(replace(draft([7, 8]), confidences=(0.5, 1.5)), committed=[7, 8]) == {"a": 1}


def test_a_borrowed_node_teaches_nothing() -> None:
    borrowing = replace(draft([7, 8, 9]), borrowed=(1, 5))
    assert observations(borrowing, committed=[7, 8, 9]) == {"a": 2}


def test_a_batch_teaches_as_its_drafts_one_by_one() -> None:
    judged = [([draft([7, 8]), replace(draft([7, 9]), drafter="b")], [7, 8]), ([], [1]), ([draft([3])], [4])]
    together, alone = Calibration(), Calibration()
    together.update_from_batch(judged)
    for drafts, committed in judged:
        alone.update_from_drafts(drafts, committed)
    assert together.changes("calibration") == alone.changes("calibration")
    assert together.value("a", 0.4) == alone.value("a", 0.4)


def test_raw_confidences_are_taken_as_they_are() -> None:
    calibration = RawConfidence()
    for _ in range(50):
        calibration.update("a", 0.9, False)
    assert calibration.value("a", 0.9) == 0.9
    assert calibration.report()["a"].acceptance == 0.0
