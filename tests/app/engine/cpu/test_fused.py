"""Test the fused forward: used only where it gives the modules' logits, and exact with int8 weights
too.
"""

import pytest
import torch

from app.engine.cpu import fused, step_arrays
from app.engine.cpu.choose_forward import choose_forward
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.hooked import HookedForward, round_weights
from app.engine.profile.profiler import check_exactness
from tests import fakes
from tests.fakes import VOCAB

FUSED = ("llama", "qwen2", "qwen3", "mistral")


@pytest.mark.parametrize("family", FUSED)
def test_families_of_the_shape_are_fused(family):
    assert isinstance(choose_forward(fakes.tiny(family)), FusedForward)


@pytest.mark.parametrize("family", ["gemma2", "phi3", "gpt2"])
def test_other_families_run_on_their_own_modules_and_are_logged(family, caplog):
    with caplog.at_level("INFO"):
        assert isinstance(choose_forward(fakes.tiny(family)), HookedForward)
    assert "runs on its own modules" in caplog.text


@pytest.mark.parametrize(
    "odd",
    [
        {"head_dim": 8},
        {"hidden_size": 24},
        {"intermediate_size": 40},
        {"hidden_act": "gelu"},
        {"mlp_bias": True},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
    ],
)
def test_models_of_an_odd_shape_run_on_their_own_modules(odd):
    runner = fakes.runner(choose_forward(fakes.tiny("llama", **odd)))
    assert isinstance(runner.model, HookedForward)


def test_a_forward_with_other_logits_is_not_used(monkeypatch, caplog):
    monkeypatch.setattr(fused, "pack", lambda weight: fused.pack_int8(weight)[0].astype("float32"))
    with caplog.at_level("INFO"):
        assert isinstance(choose_forward(fakes.tiny()), HookedForward)
    assert "standard deviations off" in caplog.text


def test_tokens_and_positions_outside_the_model_are_refused():
    runner = fakes.served()
    for ids in ([VOCAB], [3, VOCAB + 9]):
        work = fakes.work(fakes.cached(ids), 0)
        assert runner.try_reserve(work)
        with pytest.raises(ValueError, match="outside"):
            runner.forward([work])
        runner.invalidate(work)


@pytest.mark.parametrize("family", FUSED)
def test_int8_gives_other_logits_and_exact_rows(family):
    exact, rounded = fakes.served(family), fakes.runner(choose_forward(fakes.tiny(family), is_int8=True))
    assert isinstance(rounded.model, FusedForward)
    assert check_exactness(rounded, VOCAB).different == 0
    rows = []
    for runner in (exact, rounded):
        work = fakes.work(fakes.cached(range(30)), 0)
        assert runner.try_reserve(work)
        (logits,) = runner.forward([work])
        rows.append(logits.rows[0])
    difference = (rows[0] - rows[1]).abs().max()
    assert 0.0 < difference < 0.5 * rows[0].std()


def test_int8_on_the_modules_is_the_same_model():
    """The rounding is in the weights, not in the kernels."""
    quick = fakes.runner(choose_forward(fakes.tiny(), is_int8=True))
    model = fakes.tiny()
    round_weights(model)
    slow = fakes.runner(HookedForward(model.eval()))
    rows = []
    for runner in (quick, slow):
        work = fakes.work(fakes.cached(range(30)), 0)
        assert runner.try_reserve(work)
        rows.append(runner.forward([work])[0].rows[0])
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-3, atol=1e-3)


def test_a_step_without_memory_leaves_the_next_its_room(monkeypatch):
    """Room that was counted but never allocated would be written to all the same."""
    runner = fakes.served()
    small = [fakes.work(fakes.cached([1, 2, 3]), 0)]
    large = [fakes.work(fakes.cached([i % 7 for i in range(90)]), 0)]
    for works in (small, large):
        assert runner.try_reserve(works[0])
    runner.forward(small)
    rooms = runner.model._rooms
    before = rooms._rows, rooms._lines
    with monkeypatch.context() as patch:
        patch.setattr(step_arrays.np, "empty", _no_memory)
        with pytest.raises(MemoryError):
            runner.forward(large)
    assert (rooms._rows, rooms._lines) == before == (len(rooms._hidden), len(rooms._sums) // rooms._model.num_heads)


def _no_memory(shape, dtype=float):
    raise MemoryError
