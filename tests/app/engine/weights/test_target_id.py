"""Test that whatever a target's texts depend on changes its id, and nothing else does."""

import shutil
from pathlib import Path

import pytest

from app.config import Settings
from app.engine.weights.target_id import target_id
from tests import fakes


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
