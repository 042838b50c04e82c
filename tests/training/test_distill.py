"""Test `paceline train` from end to end on a tiny target: its folder, a kill and a resumption, refusals."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from app.config import ROOT
from app.engine.drafters.loader import load_guesser
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.blocks import Blocks, dense
from app.engine.weights.tensors import Stored
from training.distill import main
from training.model import checkpoint

from .conftest import WIDTH, identity

SMALL = ["--layers", "0", "--batch", "4", "--head", "64", "--threads", "1", "--negatives", "16"]


@pytest.fixture(autouse=True)
def environment(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_MODEL", str(target))
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PACELINE_VERIFY_THREADS", "1")


def _train(out: Path, data: Path, *words: str) -> int:
    return main(["--out", str(out), "--data", str(data), *SMALL, *words])


def test_the_engine_loads_a_trained_drafters_folder(tmp_path: Path, target: Path, rows_file: Path) -> None:
    out = tmp_path / "mine"
    assert _train(out, rows_file, "--steps", "3", "--no-features") == 0
    assert {path.name for path in out.iterdir()} == {
        "config.json", "model.gguf", "drafter.json", "MODEL_CARD.md"
    }  # fmt: skip
    guesser = load_guesser(out, target, kv_bytes=2**20, page_tokens=16)
    assert guesser.model.shape.num_layers == 1
    card = json.loads((out / "drafter.json").read_text())
    assert (card["embedding"], card["features"], card["steps"], card["seed"]) == ("target", False, 3, 0)
    assert card["tokenizer_sha256"] == Tokenizer(target).sha256
    assert card["embedding_sha256"] == identity(target).embedding_sha256
    domains = card["data"]["domains"]
    assert sum(d["rows"] for d in domains.values()) == card["data"]["rows"] < 30  # some are held out
    assert card["held_out"].keys() >= {"code", "math", "chat", "prose", "qa", "all"}
    text = (out / "MODEL_CARD.md").read_text()
    assert f"| code | {domains['code']['rows']} | {domains['code']['tokens']} |" in text
    assert f"| {card['held_out']['all']['tokens_per_round']:.2f} |" in text


def test_a_drafter_with_features_stores_their_weights(tmp_path: Path, rows_file: Path) -> None:
    assert _train(tmp_path / "mine", rows_file, "--steps", "2") == 0
    stored = Stored(tmp_path / "mine")
    weights = weights_in(tmp_path / "mine")
    assert weights["feature.weight"].shape == (WIDTH, WIDTH) and weights["absent"].shape == (WIDTH,)
    assert stored["head_ids"].dtype == torch.int32
    assert {weight.type for weight in stored.values() if isinstance(weight, Blocks)} == {"Q8_0"}
    assert all(isinstance(stored[name], Blocks) for name in weights if weights[name].ndim == 2)
    assert stored["absent"].dtype == torch.float16
    assert "model.norm.weight" in weights and "model.layers.0.mlp.up_proj.weight" in weights
    assert json.loads((tmp_path / "mine" / "drafter.json").read_text())["features"] is True


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return {name: dense(weight) for name, weight in Stored(folder).items()}


@pytest.mark.slow
def test_a_killed_and_resumed_training_ends_with_the_same_weights(tmp_path: Path, rows_file: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert _train(whole, rows_file, "--steps", "30") == 0
    words = ["--out", str(killed), "--data", str(rows_file), *SMALL, "--steps", "30", "--save-s", "0"]
    process = subprocess.Popen([sys.executable, "-m", "training.distill", *words], cwd=ROOT)
    try:
        until = time.monotonic() + 120
        while not (killed / checkpoint.FILE).exists() and time.monotonic() < until and process.poll() is None:
            time.sleep(0.002)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert (killed / checkpoint.FILE).exists() and not (killed / "drafter.json").exists()
    assert main(words) == 0
    one, other = (weights_in(folder) for folder in (whole, killed))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert not (killed / checkpoint.FILE).exists()


@pytest.fixture
def _interruptible():
    """Handle SIGINT as by default: a script's background process inherits that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_keeps_the_steps_taken(
    tmp_path: Path, rows_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *words: real(*words) or signal.raise_signal(signal.SIGINT))
    assert _train(tmp_path / "mine", rows_file, "--steps", "9", "--save-s", "0") == 130
    monkeypatch.setattr(checkpoint, "save", real)
    assert _train(tmp_path / "mine", rows_file, "--steps", "9", "--save-s", "0") == 0
    err = capsys.readouterr().err
    assert "the same command goes on" in err and "going on from step" in err and "Traceback" not in err


@pytest.mark.usefixtures("_interruptible")
def test_a_checkpoint_resumes_with_the_same_flags_only(
    tmp_path: Path, rows_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("training.model.model_card.write", lambda *_: signal.raise_signal(signal.SIGINT))
    assert _train(tmp_path / "mine", rows_file, "--steps", "2") == 130
    assert _train(tmp_path / "mine", rows_file, "--steps", "3") == 2
    assert "with other data or other flags" in capsys.readouterr().err
    monkeypatch.undo()
    (tmp_path / "mine" / checkpoint.FILE).write_bytes(b"torn")


def test_an_expert_goes_on_from_another_drafter_on_one_domain_and_is_measured_on_all(
    tmp_path: Path, rows_file: Path
) -> None:
    first, second = tmp_path / "general", tmp_path / "expert"
    assert _train(first, rows_file, "--steps", "2", "--no-features") == 0
    words = ["--steps", "1", "--rate", "1e-9", "--init", str(first), "--domains", "code", "--others", "0"]
    assert _train(second, rows_file, *words) == 0
    one, other = weights_in(first), weights_in(second)
    assert torch.equal(one["head_ids"], other["head_ids"]) and "feature.weight" in other
    for name in one.keys() - {"head_ids"}:
        torch.testing.assert_close(one[name], other[name], atol=2e-3, rtol=1e-2)
    general, expert = (json.loads((folder / "drafter.json").read_text()) for folder in (first, second))
    assert expert["start"] == {"drafter": "general"}
    assert expert["data"]["domains"] == {"code": general["data"]["domains"]["code"]}
    assert {"code", "chat"} <= expert["held_out"].keys()


def test_missing_data_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "texts"
    text.mkdir()
    (text / "a.py").write_text("def add(a, b):\n    return a + b\n" * 30)
    words = ["--prompts", "2", "--max-tokens", "8", "--text", f"code={text}", *SMALL, "--steps", "1"]
    assert main(["--out", str(tmp_path / "one"), *words]) == 0
    assert "generating" in capsys.readouterr().err
    assert main(["--out", str(tmp_path / "two"), *words]) == 0
    assert "generating" not in capsys.readouterr().err
    card = json.loads((tmp_path / "one" / "drafter.json").read_text())
    assert "code text in texts, read by the target" in card["data"]["sources"]
    assert card["data"]["with_states"] == card["data"]["rows"]
    one, two = (weights_in(tmp_path / name) for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--data", "/nowhere"], 2, "data: there is no /nowhere"),
        (["--text", "/nowhere"], 2, "text: there is no /nowhere"),
        (["--text", "verse=/nowhere"], 2, "text: 'verse' is no domain"),
        (["--data", "ROWS", "--domains", "code,verse"], 2, "domains: no row is of verse; there are chat, code"),
        (["--data", "ROWS", "--layers", "3"], 2, "layers: the target has no layer 3"),
        (["--data", "ROWS", "--init", "/nowhere"], 2, "init: /nowhere holds no drafter"),
        (["--data", "ROWS", "--steps", "1", "--minutes", "1"], 2, "usage: give either --steps or --minutes"),
        (["--data", "ROWS", "--others", "0"], 2, "usage: give --domains with --others"),
        (["--data", "ROWS", "--domains", "code", "--others", "2"], 2, "others: "),
        (["--data", "ROWS", "--steps", "0"], 2, "steps: "),
        (["--data", "ROWS", "--batch", "x"], 2, "batch: "),
        (["--data", "ROWS", "--target", "/nowhere"], 1, "neither a known name"),
        (["--data", "FOREIGN"], 2, "says another .*embedding_sha256"),
        (["--data", "EMPTY"], 2, "data: there is not one row"),
        (["--data", "ROWS", "--init", "STRANGER"], 2, "init: the drafter in .* is of another target"),
    ],
)
def test_wrong_input_is_a_sentence(
    tmp_path: Path, rows_file: Path, words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.jsonl").touch()
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text('{"d": "code", "p": [1], "g": [2]}\n')
    foreign.with_suffix(".about.json").write_text('{"embedding_sha256": "theirs"}')
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "drafter.json").write_text('{"tokenizer_sha256": "theirs"}')
    save_file({"x": torch.zeros(1)}, tmp_path / "stranger" / "model.safetensors")
    places = {
        "ROWS": rows_file,
        "EMPTY": tmp_path / "empty.jsonl",
        "FOREIGN": foreign,
        "STRANGER": tmp_path / "stranger",
    }
    assert main(["--out", str(tmp_path / "out"), *(str(places.get(word, word)) for word in words)]) == code
    err = capsys.readouterr().err
    assert re.search(message, err) and "Traceback" not in err


def test_a_finished_drafter_is_not_trained_over(
    tmp_path: Path, rows_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _train(tmp_path / "mine", rows_file, "--steps", "1") == 0
    assert _train(tmp_path / "mine", rows_file, "--steps", "1") == 2
    assert "holds a finished drafter" in capsys.readouterr().err
    assert _train(tmp_path / "mine", rows_file, "--steps", "2", "--restart") == 0


def test_minutes_become_steps_at_the_pace_of_the_first_ones(tmp_path: Path, rows_file: Path) -> None:
    assert _train(tmp_path / "mine", rows_file, "--minutes", "0.01") == 0
    card = json.loads((tmp_path / "mine" / "drafter.json").read_text())
    assert card["steps"] >= 12


def test_from_scratch_the_layers_start_as_noise_of_equal_spread(tmp_path: Path, rows_file: Path) -> None:
    made, taken = tmp_path / "noise", tmp_path / "layers"
    assert _train(made, rows_file, "--steps", "1", "--rate", "1e-9", "--scratch") == 0
    assert _train(taken, rows_file, "--steps", "1", "--rate", "1e-9") == 0
    noise, layers = (weights_in(folder) for folder in (made, taken))
    for name in (name for name in noise if "layers" in name and noise[name].dim() > 1):
        assert not torch.allclose(noise[name], layers[name], atol=1e-3)
        spreads = [float(found[name].float().std()) for found in (noise, layers)]
        assert spreads[0] == pytest.approx(spreads[1], rel=0.2)
    assert "noise" in (made / "MODEL_CARD.md").read_text()
    assert _train(tmp_path / "both", rows_file, "--steps", "1", "--scratch", "--init", str(made)) == 2
