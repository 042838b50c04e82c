"""Test that a model's second start runs no modules, gives the same bits, and trusts nothing that
has changed.
"""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.config import ROOT
from app.engine.cpu import choose_forward, verified_cache
from app.engine.cpu import load as loading
from app.engine.cpu.equivalence import trial
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.hooked import HookedForward
from app.engine.cpu.load import load
from app.engine.drafters.loader import load_guesser
from app.engine.weights.model_cache import with_checksum
from app.engine.weights.tensors import stored_embedding
from tests import fakes
from tests.app.engine.drafters.test_features import save as reader


@pytest.fixture
def llama(tmp_path):
    fakes.tiny("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def asked(monkeypatch):
    """Return how often modules were run."""
    found = []
    for name in ("choose_forward", "fuse_in_turn"):
        real = getattr(choose_forward, name)
        monkeypatch.setattr(choose_forward, name, lambda *args, real=real: found.append(1) or real(*args))
    return found


@pytest.mark.parametrize(
    ("family", "wanted"),
    [("llama", "stored"), ("llama", "float32"), ("llama", "q4_0"), ("qwen2", "q8_0"), ("qwen3", "stored")]
    + [("mistral", "stored")],
)
def test_a_second_start_gives_the_same_bits_without_modules(tmp_path, asked, family, wanted):
    fakes.tiny(family).save_pretrained(tmp_path / "model")
    first, second = (load(tmp_path / "model", wanted, tmp_path) for _ in range(2))
    assert len(asked) == 1
    assert isinstance(second, FusedForward)
    assert torch.equal(trial(first), trial(second))
    assert (second.max_positions, second.vocab_size, second.shape) == (
        first.max_positions,
        first.vocab_size,
        first.shape,
    )


def test_rounded_weights_are_another_model(llama, tmp_path, asked):
    whole, rounded = load(llama, "stored", tmp_path), load(llama, "q8_0", tmp_path)
    assert len(asked) == 2
    assert not torch.equal(trial(whole), trial(rounded))


def test_int8_activations_are_another_model(llama, tmp_path, asked):
    exact = load(llama, "q8_0", tmp_path)
    first, second = (load(llama, "q8_0", tmp_path, "int8") for _ in range(2))
    assert len(asked) == 2
    assert torch.equal(trial(first), trial(second)) and not torch.equal(trial(exact), trial(first))


@pytest.mark.parametrize("change", ["weights", "config", "another model's", "cut off", "one digit", "empty"])
def test_a_change_makes_the_modules_run_again(llama, tmp_path, asked, change, caplog):
    load(llama, "stored", tmp_path)
    (file,) = (tmp_path / "known").iterdir()
    if change == "weights":
        fakes.tiny("llama", seed=3).save_pretrained(llama)
    elif change == "config":
        config = json.loads((llama / "config.json").read_text())
        (llama / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.1}))
    elif change == "another model's":
        about = json.loads(file.read_text().split("\n")[1])
        text = json.dumps({**about, "spec": {**about["spec"], "epsilon": 0.5}})
        file.write_text(with_checksum(text))
    else:
        text = file.read_text()
        file.write_text({"cut off": text[:900], "one digit": text.replace("1", "2", 1), "empty": ""}[change])
    again = load(llama, "stored", tmp_path)
    assert len(asked) == 2
    assert torch.equal(trial(again), trial(load(llama, "stored", None)))
    assert ("again" in caplog.text) == (change not in ("weights", "config"))


def test_a_full_disk_costs_the_next_start_time_only(llama, tmp_path, asked):
    (tmp_path / "known").write_text("a file where a folder should be")
    assert all(isinstance(load(llama, "stored", tmp_path), FusedForward) for _ in range(2))
    assert len(asked) == 2


def test_files_may_hold_more_than_the_modules_do(llama, tmp_path, asked):
    """Tables of sines, in older ones; biases that the configuration has switched off."""
    weights = load_file(llama / "model.safetensors")
    bias = weights["model.layers.0.self_attn.q_proj.weight"][:, 0].clone()  # config.json says that there is none
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)}
    table["model.layers.0.self_attn.q_proj.bias"] = bias
    save_file(weights | table, llama / "model.safetensors", {"format": "pt"})
    first, second = load(llama, "stored", tmp_path), load(llama, "stored", tmp_path)
    assert len(asked) == 1 and torch.equal(trial(first), trial(second))


def test_shards_halves_and_a_tied_head_are_read_as_by_modules(tmp_path, asked):
    tiny = fakes.tiny("llama", tie_word_embeddings=True).to(torch.bfloat16)
    tiny.save_pretrained(tmp_path / "model", max_shard_size="10KB")
    assert len([*(tmp_path / "model").glob("*.safetensors")]) > 1
    first, second = load(tmp_path / "model", "stored", tmp_path), load(tmp_path / "model", "stored", tmp_path)
    assert len(asked) == 1 and torch.equal(trial(first), trial(second))


def test_a_drafter_on_the_targets_embedding_is_cached(tmp_path, asked):
    folder, target = reader(tmp_path)
    memory = {"kv_bytes": 2**20, "page_tokens": fakes.PAGE_TOKENS, "home": tmp_path}
    first, second = load_guesser(folder, target, **memory), load_guesser(folder, target, **memory)
    assert len(asked) == 1 and torch.equal(trial(first.model), trial(second.model))
    fakes.tiny(tie_word_embeddings=True, seed=9).save_pretrained(target)
    stored_embedding.cache_clear()
    other = load_guesser(folder, target, **memory)
    stored_embedding.cache_clear()
    assert len(asked) == 2 and not torch.equal(trial(first.model), trial(other.model))


def test_files_with_other_numbers_are_served_and_not_cached(llama, tmp_path, asked, monkeypatch):
    """What a later start would read must be what the modules were made of."""
    monkeypatch.setattr(loading.Stored, "__getitem__", lambda self, name: torch.zeros(1))
    assert isinstance(load(llama, "stored", tmp_path), FusedForward)
    assert not (tmp_path / "known").exists()


def test_other_families_load_their_modules_at_every_start(tmp_path, asked):
    fakes.tiny("gpt2").save_pretrained(tmp_path / "model")
    assert all(isinstance(load(tmp_path / "model", "stored", tmp_path), HookedForward) for _ in range(2))
    assert len(asked) == 2


def test_a_second_start_does_not_import_transformers(llama, tmp_path):
    load(llama, "stored", tmp_path)
    code = (
        "import sys; from pathlib import Path; import app.assembly.local; from app.engine.cpu.load import load;"
        f"load(Path({str(llama)!r}), 'stored', Path({str(tmp_path)!r})); print('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("wanted", "activations"), [("stored", "float32"), ("q4_0", "float32"), ("q8_0", "int8"), ("float32", "float32")]
)
@pytest.mark.parametrize("is_tied", [True, False])
def test_weights_that_take_long_to_pack_are_read_packed(tmp_path, monkeypatch, wanted, activations, is_tied):
    monkeypatch.setattr(verified_cache, "LONG_S", 0.0)
    fakes.tiny("qwen2", tie_word_embeddings=is_tied).save_pretrained(tmp_path / "model")
    first = load(tmp_path / "model", wanted, tmp_path, activations)
    monkeypatch.setattr(loading, "Stored", None)  # what is packed is read from no other file
    second = load(tmp_path / "model", wanted, tmp_path, activations)
    assert torch.equal(trial(first), trial(second)) and second.weight_bytes == first.weight_bytes
    assert len(second._held) == len(first._held) and first.mapped_bytes == 0 < second.mapped_bytes


def test_packed_weights_of_a_changed_model_are_replaced(llama, tmp_path, asked, monkeypatch):
    monkeypatch.setattr(verified_cache, "LONG_S", 0.0)
    load(llama, "stored", tmp_path)
    fakes.tiny("llama", seed=3).save_pretrained(llama)
    again = load(llama, "stored", tmp_path)
    assert torch.equal(trial(again), trial(load(llama, "stored", tmp_path)))
    assert torch.equal(trial(again), trial(load(llama, "stored", None)))
    assert len([*(tmp_path / "packed").iterdir()]) == 1


@pytest.mark.parametrize("change", ["cut off", "longer", "no index", "zeros"])
def test_damaged_packed_weights_are_made_again(llama, tmp_path, monkeypatch, caplog, change):
    monkeypatch.setattr(verified_cache, "LONG_S", 0.0)
    first = load(llama, "stored", tmp_path)
    (file,) = (tmp_path / "packed").iterdir()
    whole = file.read_bytes()
    index, _, arrays = whole.partition(b"\n")
    zeros = index + b"\n" + bytes(len(arrays))
    file.write_bytes({"cut off": whole[:-1], "longer": whole + b"0", "no index": b"{}\n", "zeros": zeros}[change])
    assert torch.equal(trial(first), trial(load(llama, "stored", tmp_path)))
    assert "again" in caplog.text and file.read_bytes() == whole


def test_a_target_is_compared_in_a_form_in_which_it_has_drafted(llama, tmp_path, asked):
    load(llama, "stored", tmp_path, drafts=True)
    other = load(llama, "q8_0", tmp_path, drafts=True, like="stored")
    assert len(asked) == 1 and torch.equal(trial(other), trial(load(llama, "q8_0", tmp_path, drafts=True)))
    load(llama, "q8_0", tmp_path)
    assert len(asked) == 2
