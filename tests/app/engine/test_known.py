"""A model's second start asks its modules nothing, says the same bits, and trusts nothing that has changed."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.engine import learn, model
from app.engine.fused import FusedForward
from app.engine.hooked import HookedForward
from app.engine.model import load
from app.engine.trial import trial
from tests import fakes


@pytest.fixture(params=["llama", "qwen2", "qwen3", "mistral"])
def folder(request, tmp_path):
    fakes.tiny(request.param).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def llama(tmp_path):
    fakes.tiny("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def asked(monkeypatch):
    """How often modules are asked what they say."""
    found = []
    real = learn.learn
    monkeypatch.setattr(learn, "learn", lambda *args: found.append(1) or real(*args))
    return found


@pytest.mark.parametrize("is_int8", [False, True])
def test_the_second_start_asks_no_modules_and_says_the_same_bits(folder, tmp_path, asked, is_int8):
    first, second = (load(folder, is_int8, tmp_path) for _ in range(2))
    assert len(asked) == 1
    assert isinstance(second, FusedForward)
    assert torch.equal(trial(first), trial(second))
    assert (second.max_positions, second.vocab_size, second.shape) == (
        first.max_positions,
        first.vocab_size,
        first.shape,
    )


def test_with_weights_rounded_it_is_another_model(llama, tmp_path, asked):
    whole, rounded = load(llama, False, tmp_path), load(llama, True, tmp_path)
    assert len(asked) == 2
    assert not torch.equal(trial(whole), trial(rounded))


@pytest.mark.parametrize("change", ["weights", "config", "memory", "garbage"])
def test_what_has_changed_is_asked_again(llama, tmp_path, asked, change, caplog):
    load(llama, False, tmp_path)
    (file,) = (tmp_path / "known").iterdir()
    if change == "weights":
        fakes.tiny("llama", seed=3).save_pretrained(llama)
    elif change == "config":
        config = json.loads((llama / "config.json").read_text())
        (llama / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.1}))
    elif change == "memory":
        known = json.loads(file.read_text())
        known["blueprint"]["epsilon"] = 0.5
        file.write_text(json.dumps(known))
    else:
        file.write_text("{")
    again = load(llama, False, tmp_path)
    assert len(asked) == 2
    assert torch.equal(trial(again), trial(load(llama, False, None)))
    assert ("again" in caplog.text) == (change in ("memory", "garbage"))


def test_a_full_disk_costs_the_next_start_its_time_and_nothing_else(llama, tmp_path, asked):
    (tmp_path / "known").write_text("a file where a folder should be")
    assert all(isinstance(load(llama, False, tmp_path), FusedForward) for _ in range(2))
    assert len(asked) == 2


def test_files_may_hold_more_than_the_modules_do(llama, tmp_path, asked):
    """Tables of sines, in older ones."""
    weights = load_file(llama / "model.safetensors")
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)}
    save_file(weights | table, llama / "model.safetensors", {"format": "pt"})
    assert all(isinstance(load(llama, False, tmp_path), FusedForward) for _ in range(2))
    assert len(asked) == 1


def test_files_that_name_their_weights_otherwise_are_served_and_not_kept(llama, tmp_path, asked, monkeypatch):
    """What a later start would read must be what the modules were made of."""
    monkeypatch.setattr(model.Stored, "__getitem__", lambda self, name: torch.zeros(1))
    assert isinstance(load(llama, False, tmp_path), FusedForward)
    assert not (tmp_path / "known").exists()


def test_other_families_are_asked_at_every_start(tmp_path, asked):
    fakes.tiny("gpt2").save_pretrained(tmp_path / "model")
    assert all(isinstance(load(tmp_path / "model", False, tmp_path), HookedForward) for _ in range(2))
    assert len(asked) == 2


def test_a_second_start_does_without_transformers(llama, tmp_path):
    load(llama, False, tmp_path)
    code = (
        "import sys; from pathlib import Path; import app.assemble; from app.engine.model import load;"
        f"load(Path({str(llama)!r}), False, Path({str(tmp_path)!r})); print('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
