"""Test the fused forward: used only where it gives the modules' logits, and exact with int8 weights
too.
"""

from typing import get_args

import pytest
import torch

from app.config import KVDtype
from app.engine.cpu import packed_model, step_arrays
from app.engine.cpu.choose_forward import choose_forward
from app.engine.cpu.equivalence import trial
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.hooked import HookedForward, round_weights
from app.engine.profile.profiler import check_exactness
from app.errors import ModelRefused
from kernels.cpu.products.pack import pack
from tests import fakes
from tests.fakes import VOCAB

KV_DTYPES = get_args(KVDtype)

FUSED = ("llama", "qwen2", "qwen3", "mistral")


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
    monkeypatch.setattr(packed_model, "pack", lambda weight: pack(weight.round(1)))
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


@pytest.mark.parametrize(
    ("weights", "activations", "most"), [("q8_0", "float32", 0.5), ("q4_0", "float32", 5.0), ("q8_0", "int8", 0.5)]
)
@pytest.mark.parametrize("family", FUSED)
def test_rounding_gives_other_logits_and_exact_rows(family, weights, activations, most):
    exact = fakes.runner(choose_forward(fakes.tiny(family), "stored" if activations == "float32" else weights))
    rounded = fakes.runner(choose_forward(fakes.tiny(family), weights, activations=activations))
    assert isinstance(rounded.model, FusedForward)
    assert check_exactness(rounded, VOCAB).different == 0
    rows = [logits_of(runner) for runner in (exact, rounded)]
    assert 0.0 < (rows[0] - rows[1]).abs().max() < most * rows[0].std()


@pytest.mark.parametrize("wanted", ["q8_0", "q4_0"])
def test_rounded_weights_on_the_modules_are_the_same_model(wanted):
    """The rounding is in the weights, not in the kernels."""
    model = fakes.tiny()
    round_weights(model, wanted)
    quick, slow = fakes.runner(choose_forward(fakes.tiny(), wanted)), fakes.runner(HookedForward(model.eval()))
    torch.testing.assert_close(logits_of(quick), logits_of(slow), rtol=1e-3, atol=1e-3)


def test_int8_activations_of_a_model_without_integers_are_refused():
    with pytest.raises(ModelRefused, match="PACELINE_WEIGHTS=q8_0"):
        choose_forward(fakes.tiny(), activations="int8")
    with pytest.raises(ModelRefused, match="needs the compiled forward"):
        choose_forward(fakes.tiny("gpt2"), "q8_0", activations="int8")


@pytest.mark.parametrize(("family", "dtype"), [*zip(FUSED, [torch.bfloat16, torch.float16] * 2, strict=True)])
def test_halves_are_kept_and_give_the_bits_of_float32(family, dtype):
    model, weights = fakes.tiny(family), fakes.tiny(family).to(dtype).state_dict()
    model.load_state_dict(weights)
    kept = choose_forward(model, "stored", weights)
    whole = choose_forward(model, "float32", weights)
    assert (logits_of(fakes.runner(kept)) == logits_of(fakes.runner(whole))).all()
    assert held_bytes(kept) < 0.85 * held_bytes(whole)  # embedding and sines stay float32


@pytest.mark.parametrize("family", FUSED)
def test_pages_of_halves_take_half_the_memory_and_rows_keep_their_bits(family):
    whole, halves = (fakes.runner(choose_forward(fakes.tiny(family)), kv_dtype=dtype) for dtype in KV_DTYPES)
    assert check_exactness(halves, VOCAB).different == 0
    rows = [logits_of(runner) for runner in (whole, halves)]
    assert 0.0 < (rows[0] - rows[1]).abs().max() < 0.02 * rows[0].std()
    sizes = [runner.kv.keys.nbytes + runner.kv.values.nbytes for runner in (whole, halves)]
    assert sizes[0] == 2 * sizes[1] and whole.pool.num_pages == halves.pool.num_pages


def test_pages_of_halves_are_for_the_compiled_forward_alone():
    with pytest.raises(ModelRefused, match="PACELINE_KV_DTYPE=float16"):
        fakes.runner(choose_forward(fakes.tiny("gpt2")), kv_dtype="float16")


def logits_of(runner):
    """Return the logits of a text's last row."""
    work = fakes.work(fakes.cached(range(30)), 0)
    assert runner.try_reserve(work)
    return runner.forward([work])[0].rows[0]


def held_bytes(forward):
    return sum(array.nbytes for array in vars(forward)["_held"].values())


def test_a_step_without_memory_leaves_the_next_its_room(monkeypatch):
    """Room that was counted but never allocated would be written to all the same."""
    runner = fakes.served()
    small = [fakes.work(fakes.cached([1, 2, 3]), 0)]
    large = [fakes.work(fakes.cached([i % 7 for i in range(90)]), 0)]
    for works in (small, large):
        assert runner.try_reserve(works[0])
    runner.forward(small)
    rooms = runner.model._rooms
    before = rooms._rows, rooms._lines, rooms._room
    with monkeypatch.context() as patch:
        patch.setattr(step_arrays.np, "empty", _no_memory)
        with pytest.raises(MemoryError):
            runner.forward(large)
    assert (rooms._rows, rooms._lines, rooms._room) == before
    assert rooms._room.hidden == rooms._hidden.ctypes.data and len(rooms._hidden) == rooms._rows


def _no_memory(shape, dtype=float):
    raise MemoryError


def test_another_number_of_threads_changes_no_bit_and_never_exceeds_the_first():
    torch.set_num_threads(2)
    forward = choose_forward(fakes.tiny("llama"))
    assert isinstance(forward, FusedForward)
    expected = fakes.runner(forward)
    found = {}
    for threads in (2, 1, 64, 2):
        forward.work_with(threads)
        assert check_exactness(expected, VOCAB).different == 0
        found[threads] = trial(forward)
    assert all(torch.equal(one, found[1]) for one in found.values())
