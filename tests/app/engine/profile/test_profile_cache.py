"""A verifier's measurement is kept for its next start, and only for one that would measure the same."""

import json
import logging
from math import inf

import pytest

from app.config import Settings
from app.engine.profile import profile_cache as module
from app.engine.profile.profile_cache import measure_again, measured
from app.engine.profile.profiler import FIRST_PASSES, FIRST_ROWS, Exactness
from app.engine.step_costs import StepCosts
from app.engine.weights import fingerprint
from app.system import exclusive
from tests import fakes

SLOW = {1: 0.5, 8: 0.6, 32: 1.0}  # seconds
MOST = {48: 1.4}


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text("{}")
    (place / "model.safetensors").write_bytes(b"weights")
    return place


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home")


@pytest.fixture
def counted(monkeypatch):
    """Count how often costs are measured; steps of the spot check take the seconds of SLOW."""
    calls = []

    def measure(*_, is_rough=False):
        calls.append(1)
        return StepCosts(SLOW | MOST, logits_s=0.01, is_rough=is_rough)

    monkeypatch.setattr(module, "measure_costs", measure)
    monkeypatch.setattr(module, "times", lambda *_: SLOW)
    return calls


def _start(folder, settings, in_full=True):
    return measured(fakes.served(), fakes.VOCAB, 512, folder, settings, in_full=in_full)


def test_the_second_start_measures_nothing(folder, settings, counted):
    first, second = _start(folder, settings), _start(folder, settings)
    assert len(counted) == 1
    assert second.dumps() == first.dumps()


@pytest.mark.parametrize("change", ["weights", "another file", "config", "code"])
def test_a_changed_dependency_makes_a_measurement_anew(folder, settings, counted, change, monkeypatch, tmp_path):
    (folder / "model.gguf").write_bytes(b"blocks")
    _start(folder, settings)
    if change == "weights":
        (folder / "model.safetensors").write_bytes(b"other weights")
    if change == "another file":
        (folder / "model.gguf").write_bytes(b"other blocks")
    if change == "config":
        (folder / "config.json").write_text('{"a": 1}')
    if change == "code":
        (tmp_path / "new.py").write_text("")
        monkeypatch.setattr(fingerprint, "_sources", lambda: [tmp_path / "new.py"])
    _start(folder, settings)
    assert len(counted) == 2


@pytest.mark.parametrize(
    "change", [{"verify_threads": 5}, {"weights": "q8_0"}, {"activations": "int8"}, {"kv_dtype": "float16"}]
)
def test_settings_that_decide_how_a_step_computes_make_a_measurement_anew(folder, settings, counted, change):
    _start(folder, settings)
    _start(folder, settings.model_copy(update=change))
    assert len(counted) == 2


def _again(folder, settings, costs, goes_on=lambda: True, target=None):
    return measure_again(target or fakes.served(), costs, fakes.VOCAB, 512, folder, settings, goes_on)


def test_a_first_start_times_few_steps_and_the_rest_when_there_is_time(folder, settings, monkeypatch, caplog):
    asked, checks = [], []

    def measure(*arguments, is_rough=False):
        asked.append(arguments[3:])
        return StepCosts(SLOW, is_rough=True) if is_rough else StepCosts({1: 0.9, 48: 1.2})

    def check(*_):
        checks.append(1)
        if len(checks) == 1:
            raise RuntimeError("no memory")
        return Exactness(12, 3)

    monkeypatch.setattr(module, "measure_costs", measure)
    monkeypatch.setattr(module, "check_exactness", check)
    monkeypatch.setattr(module, "times", lambda *_: {1: 0.9, 8: 0.945, 32: 1.1})
    costs, other = (_start(folder, settings, in_full=False) for _ in range(2))
    assert asked == [(FIRST_ROWS, FIRST_PASSES)] and not checks
    with pytest.raises(RuntimeError):
        _again(folder, settings, costs)
    assert asked[1:] == [()], "all sizes"
    assert costs.seconds(48) == _start(folder, settings, in_full=False).seconds(48) == 1.2, "kept before the check"
    assert _again(folder, settings, other) and "3 of 12 rows changed bits" in caplog.text
    assert other.seconds(48) == 1.2 and len(asked) == 2, "another verifier has measured"
    assert not (costs.is_rough or other.is_rough)
    assert _again(folder, settings, costs) and (len(asked), len(checks)) == (2, 2), "it holds"


def test_who_measures_in_full_does_not_take_a_short_measurement(folder, settings, counted):
    _start(folder, settings, in_full=False)
    _start(folder, settings)
    _start(folder, settings)
    assert len(counted) == 2


@pytest.mark.parametrize(
    ("looks", "times"),
    [
        ([SLOW], 0),
        ([{rows: 3 * seconds for rows, seconds in SLOW.items()}], 0),  # a busy machine, or a slower one
        ([{**SLOW, 1: 2.5}, {**SLOW, 8: 3.0}], 0),  # each look disturbed at another place
        ([{rows: seconds / 3 for rows, seconds in SLOW.items()}], 1),  # it was busy when it was measured
        ([{1: 0.1, 8: 0.6, 32: 1.0}] * 4, 1),
    ],
)
def test_steps_are_measured_again_where_they_are_faster_or_of_another_shape(
    folder, settings, counted, monkeypatch, looks, times
):
    costs = _start(folder, settings)
    left = list(looks)
    monkeypatch.setattr(module, "times", lambda *_: left.pop(0))
    fast = StepCosts({1: 0.1, 32: 0.2} | MOST)
    monkeypatch.setattr(module, "measure_costs", lambda *_: counted.append(1) or fast)
    assert _again(folder, settings, costs) and not left
    assert len(counted) == 1 + times
    after = _start(folder, settings)
    assert costs.seconds(32) == after.seconds(32) == (0.2 if times else SLOW[32])


def test_what_a_busy_machine_measures_is_not_taken_over(folder, settings, counted, monkeypatch):
    costs = _start(folder, settings)
    monkeypatch.setattr(module, "times", lambda *_: {1: 0.1, 8: 0.6, 32: 1.0})
    monkeypatch.setattr(module, "measure_costs", lambda *_: StepCosts({1: 0.9, 32: 1.2} | MOST))
    assert _again(folder, settings, costs)
    assert costs.seconds(1) == _start(folder, settings).seconds(1) == SLOW[1]


@pytest.mark.parametrize("in_full", [False, True])
@pytest.mark.parametrize("steps", [2, 40])
def test_mail_ends_a_look_at_once_and_all_its_pages_come_back(folder, settings, monkeypatch, in_full, steps):
    monkeypatch.setattr(module, "ALIKE", inf)
    target = fakes.served()
    costs = measured(target, fakes.VOCAB, 512, folder, settings, in_full=in_full)
    free, left = target.pool.num_free, iter([True] * steps + [False])
    assert _again(folder, settings, costs, lambda: next(left), target) == (in_full and steps == 40)
    assert target.pool.num_free == free


def test_one_process_measures_at_a_time(folder, settings, counted):
    costs = _start(folder, settings, in_full=False)
    (file,) = (settings.home / "measured").glob("*.json")
    with exclusive(file.with_suffix(".lock")) as is_alone:
        assert is_alone and not _again(folder, settings, costs)
    assert '"exactness": null' in file.read_text()
    assert _again(folder, settings, costs)
    assert '"exactness": null' not in file.read_text()


def test_a_step_that_fails_leaves_no_page_behind(folder, settings, monkeypatch):
    target = fakes.served()
    costs = measured(target, fakes.VOCAB, 512, folder, settings, in_full=False)
    free, run, left = target.pool.num_free, target.forward, iter([True] * 90)

    def forward(works):
        if not next(left, False):
            raise MemoryError
        return run(works)

    monkeypatch.setattr(target, "forward", forward)
    with pytest.raises(MemoryError):
        _again(folder, settings, costs, target=target)
    assert target.pool.num_free == free


def test_a_lost_redis_ends_a_look_and_all_its_pages_come_back(folder, settings):
    target = fakes.served()
    costs = measured(target, fakes.VOCAB, 512, folder, settings, in_full=False)
    free, left = target.pool.num_free, iter([True] * 3)
    with pytest.raises(StopIteration):  # what asks for mail raises
        _again(folder, settings, costs, lambda: next(left), target)
    assert target.pool.num_free == free


@pytest.mark.parametrize("text", ["", "{", "[]", '{"exactness": {}, "costs": {}}', '{"exactness": 1}'])
def test_a_damaged_file_is_measured_over(folder, settings, counted, text):
    _start(folder, settings)
    (file,) = (settings.home / "measured").glob("*.json")
    file.write_text(text)
    _start(folder, settings)
    assert len(counted) == 2
    assert json.loads(file.read_text().partition("\n")[2])["costs"]["logits_s"] == 0.01


def test_bits_that_depend_on_the_batch_are_logged_at_every_start(folder, settings, counted, monkeypatch, caplog):
    monkeypatch.setattr(module, "check_exactness", lambda *_: Exactness(12, 3))
    with caplog.at_level(logging.WARNING):
        _start(folder, settings)
        _start(folder, settings)
    assert caplog.text.count("3 of 12 rows changed bits") == 2


def test_an_unwritable_disk_costs_the_next_start_its_time_only(folder, tmp_path, counted):
    (tmp_path / "home").write_text("a file")
    settings = Settings(home=tmp_path / "home")
    costs = _start(folder, settings)
    assert costs.seconds(1) == 0.5
    assert _again(folder, settings, costs) and len(counted) == 1
