"""Test that whatever a target's texts depend on changes its id, and nothing else does."""

import shutil
from pathlib import Path

import pytest

from app.config import Settings
from app.engine.weights import target_id as module
from app.engine.weights.resolve import GGUF
from app.engine.weights.target_id import target_id
from kernels.cpu.attention import FIRST_SPLIT, SPLIT
from tests import fakes
from tests.app.engine.weights.ggufs import write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    fakes.tiny().save_pretrained(folder)
    return folder


def id_of(folder: Path, home: Path, tokenizer: str = "a", device: str = "cpu", **changes: object) -> str:
    return target_id(folder, Settings(home=home, **changes), tokenizer, device)


def test_whatever_changes_a_text_changes_the_id(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    ids = [
        id_of(folder, tmp_path),
        id_of(other, tmp_path),
        id_of(folder, tmp_path, tokenizer="b"),
        id_of(folder, tmp_path, weights="q8_0"),
        id_of(folder, tmp_path, activations="int8"),
        id_of(folder, tmp_path, kv_dtype="float16"),
        id_of(folder, tmp_path, device="cuda"),
        id_of(folder, tmp_path, device="cuda", gpu_exact=True),
        id_of(folder, tmp_path, device="cuda", gpu_dtype="float16"),
    ]
    assert len(set(ids)) == len(ids) and all(len(one) == 16 for one in ids)


def test_nothing_else_does(folder: Path, tmp_path: Path) -> None:
    """Where the files lie, how many threads compute, and what a CPU has no use for."""
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    ids = {
        id_of(folder, tmp_path),
        id_of(folder, tmp_path),  # from what is kept of the first
        id_of(moved, tmp_path / "home"),
        id_of(folder, tmp_path, weights="float32"),
        id_of(folder, tmp_path, verify_threads=1, gpu_dtype="float16", max_sequences=3),
    }
    assert len(ids) == 1


@pytest.mark.parametrize(("kinds", "changes"), [(("Q8_0", "F16"), True), (("BF16", "F32"), False)])
def test_integers_are_another_target_than_the_floats_they_stand_for(
    kinds: tuple[str, ...], changes: bool, tmp_path: Path
) -> None:
    """Their products with float32 rows are added up in another order; rounded rows meet none in float32."""
    write(fakes.tiny(), tmp_path / GGUF, kinds)
    (tmp_path / "config.json").write_text("{}")
    for given, differ in (({}, changes), ({"activations": "int8"}, False)):
        ids = {id_of(tmp_path, tmp_path, weights=weights, **given) for weights in ("stored", "float32")}
        assert (len(ids) == 2) == differ
    assert f"splits of {FIRST_SPLIT} and {SPLIT} keys" in module._on_cpu(tmp_path, Settings(home=tmp_path))
    by_vllm = Settings(home=tmp_path, engine="vllm")
    assert module._on_cpu(tmp_path, by_vllm) == "float32", "its products are not ours"


@pytest.mark.parametrize(("kinds", "changes"), [(("Q8_0", "Q6_K"), True), (("Q8_0", "Q4_1"), False)])
def test_int8_is_another_target_than_it_was_of_files_with_k_types_only(
    kinds: tuple[str, ...], changes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose weights it once multiplied by float32 rows."""
    write(fakes.tiny(hidden_size=256), tmp_path / GGUF, kinds)
    (tmp_path / "config.json").write_text("{}")
    settings = ({"activations": "int8"}, {}, {"activations": "int8", "weights": "q8_0"})
    now = [id_of(tmp_path, tmp_path, **changed) for changed in settings]
    monkeypatch.setattr(module, "_activations", lambda folder, settings: settings.activations)
    before = [id_of(tmp_path, tmp_path, **changed) for changed in settings]
    assert [one != other for one, other in zip(now, before, strict=True)] == [changes, False, False]
