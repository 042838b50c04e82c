"""Test that a drafter is refused by its files alone, named as the user named it."""

import json
from pathlib import Path

import pytest
import tokenizers
from safetensors.numpy import save_file

from app.config import Settings
from app.engine.weights.drafter_files import drafter_problem
from app.engine.weights.gguf_header import opened, title, tokens
from app.errors import ModelRefused
from app.local.up import _models
from tests import fakes
from tests.app.engine.weights.ggufs import write


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "target.gguf"
    write(fakes.tiny(), file, ("Q8_0",), general__name="A tiny (7B) model")
    return file


def folder_of(words: list[str], folder: Path) -> Path:
    """Make a model's folder whose tokenizer has these words."""
    vocabulary = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "a"))
    folder.mkdir()
    vocabulary.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(words)}))
    save_file({}, folder / "model.safetensors")
    return folder


def test_a_drafter_fits_by_its_tokens_whatever_its_files(target: Path, tmp_path: Path) -> None:
    words = tokens(target)
    assert drafter_problem(str(target), target) is None
    fitting = folder_of(words[:-3], tmp_path / "fitting")
    assert drafter_problem(str(fitting), target) is None and drafter_problem(str(target), fitting) is None
    other = folder_of(["other", *words[1:]], tmp_path / "other")
    for drafter, of in ((other, target), (target, other), (other, fitting)):
        problem = drafter_problem(str(drafter), of)
        assert problem is not None and f"{drafter} has another vocabulary than the target: its token 0 is" in problem
    (fitting / "tokenizer.json").unlink()
    assert drafter_problem(str(other), fitting) is None, "the target is refused for that, or not fetched yet"
    assert drafter_problem("smol-general", target) == f"smol-general has 49152 token ids, the target {len(words)}"


def test_files_that_cannot_be_read_are_named_as_the_user_named_them(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = target.read_bytes()
    end = max(int(tensor.data_offset) + int(tensor.n_bytes) for tensor in opened(target).tensors)
    Path("cut.gguf").write_bytes(whole[:-200])
    Path("junk.gguf").write_text("junk")
    cut = folder_of(["a"], Path("cut"))
    (cut / "model.safetensors").write_bytes(b"\x09")
    for name, problem in {
        "cut.gguf": f"cut.gguf is not a whole GGUF file: it is cut short: {len(whole) - 200} bytes of {end}",
        "junk.gguf": "junk.gguf is not a whole GGUF file: it does not begin as one",
        "none.gguf": "none.gguf cannot be read: No such file or directory",
        "cut": "cut/model.safetensors is not a whole safetensors file: ",
        "nowhere": "drafter 'nowhere' is neither in drafters/ nor a GGUF file nor a folder with",
    }.items():
        assert (drafter_problem(name, target) or "").startswith(problem)
        with pytest.raises(ModelRefused) as refused:
            _models(Settings(model=str(target), drafters=(name,), home=tmp_path / "home"), print)
        assert str(refused.value).startswith(f"PACELINE_DRAFTERS: {problem}")
        if name.endswith(".gguf"):
            with pytest.raises(ModelRefused) as refused:
                _models(Settings(model=name, home=tmp_path / "home"), print)
            assert str(refused.value) == problem
    assert not (tmp_path / "home").exists(), "the target has not been described"


def test_up_leaves_out_the_plans_drafters_of_another_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = folder_of(["a", "b"], tmp_path / "mine")
    found = _models(Settings(model=str(target), phrases="none", home=tmp_path), print)
    assert found == {"model": str(target), "served_name": "mine", "drafters": ()}
    assert "the plan's drafters are left out: smol-general was made for another tokenizer" in caplog.text


def test_a_file_names_its_model_as_clients_may(target: Path, tmp_path: Path) -> None:
    assert title(target) == "A-tiny-7B-model"
    write(fakes.tiny(), tmp_path / "mine.gguf", ("Q8_0",))
    assert title(tmp_path / "mine.gguf") == "mine"
