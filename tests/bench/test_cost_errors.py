"""Test how far expected costs are off, on targets and drafters whose time a clock by hand keeps."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.assembly.local import Models
from app.engine.profile.profiler import CONTEXT
from app.engine.step_costs import Reading, StepCosts
from app.state import BatchEntry
from bench.cost_errors import HELD_OUT, Point, draft_points, figures, main, parse_args, step_points
from tests import fakes

STEP_S, ROW_S, TOKEN_S = 0.01, 0.001, 2e-6
COSTS = StepCosts({1: STEP_S + ROW_S, 100: STEP_S + 100 * ROW_S}, reading=Reading(TOKEN_S))


class Model:
    """Take a step's time, or a draft's; several sequences at once are a quarter slower than is expected."""

    capacity_tokens = free_tokens = 5000

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock
        self.held: set[int] = set()

    def forward(self, works: list[BatchEntry]) -> list[Any]:
        rows = sum(1 + len(work.tree) for work in works)
        took_s = STEP_S + ROW_S * rows + TOKEN_S * sum(work.start for work in works)
        self._clock[0] += took_s * (1.25 if len(works) > 1 else 1.0)
        return []

    def guess(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Any]]:
        assert floor == 0.0, "else a draft may end early"
        self._clock[0] += 0.002 + 0.001 * depth * (1.25 if len(works) == 6 else 1.0)
        return []

    def try_reserve(self, work: BatchEntry, ahead: int = 0) -> bool:
        self.held.add(id(work.sequence))
        return True

    def release(self, sequence: Any) -> None:
        self.held.discard(id(sequence))

    def cover(self, sequence: Any, tokens: int) -> None:
        assert tokens == CONTEXT

    def drop(self, work: BatchEntry) -> None:
        pass


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    clock = [0.0]
    for module in ("bench.cost_errors", "app.engine.profile.profiler"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    return Model(clock)


def test_steps_that_were_not_measured_are_set_beside_what_is_expected(model: Any) -> None:
    args = parse_args(["--sequences", "1", "2", "--rows", "1", "5", "--contexts", "300", "3000", "--passes", "2"])
    points = step_points(model, COSTS, 61, 4000, args)
    assert [(point.axes["sequences"], point.axes["context"]) for point in points] == [
        (1, 300), (1, 3000), (1, 300), (1, 3000), (2, 300), (2, 300),
    ], "two sequences of 3,000 tokens do not fit"  # fmt: skip
    assert points[2].measured_s == pytest.approx(STEP_S + 5 * ROW_S + 300 * TOKEN_S)
    found = figures(points)
    assert found["mean_error_by"]["sequences"] == {"1": 0.0, "2": pytest.approx(0.2)}
    assert found["mean_error"] == pytest.approx(2 * 0.2 / 6, abs=1e-4)
    assert not model.held, "no page is left behind"


def test_drafts_are_judged_at_lengths_and_batches_that_taught_nothing(model: Any) -> None:
    found = figures(draft_points(model, 61, passes=4))
    assert len(found["points"]) == len(HELD_OUT[0]) * len(HELD_OUT[1])
    errors = found["mean_error_by"]["batch"]
    assert errors["1"] == errors["3"] < 0.16, "guesses in proportion to the length; a call of the model costs beside"
    assert errors["6"] > errors["1"], "batches of its size class were faster"
    assert not model.held


def test_a_pace_that_all_points_share_stands_beside_the_mean() -> None:
    points = [Point({"rows": rows}, 1.5 * rows, 1.0 * rows) for rows in (1, 2, 3)]
    found = figures(points)
    assert (found["mean_error"], found["pace"], found["mean_error_at_that_pace"]) == (0.3333, 1.5, 0.0)
    assert figures([]) == {"points": []}


def test_the_command_measures_a_model_and_writes_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = fakes.served(pages=64)
    tokenizer: Any = SimpleNamespace(vocab_size=fakes.VOCAB, context_tokens=512)
    monkeypatch.setattr("bench.cost_errors.load_models", lambda _: Models(runner, COSTS.dumps(), {}, tokenizer))
    out = tmp_path / "costs.json"
    words = ["--sequences", "1", "2", "--rows", "1", "3", "--contexts", "40", "--passes", "1", "--out", str(out)]
    assert main(words) == 0
    found = json.loads(out.read_text())
    assert found["command"].startswith("./paceline bench costs") and found["drafts"] == {}
    assert len(found["steps"]["points"]) == 4
    assert all(point["measured_ms"] > 0.0 for point in found["steps"]["points"])


def test_what_the_profile_measured_is_no_point(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(["--contexts", str(CONTEXT)])
    assert "another context" in capsys.readouterr().err
