"""Whether a model drafter's folder is whole and speaks the target's tokens. Reads files only."""

import hashlib
import json
from pathlib import Path
from typing import Any

from app.config import ROOT


def drafter_problem(name: str, target: Path) -> str | None:
    """What is wrong with a drafter (a name in drafters/ or a folder); None if nothing is."""
    folder = ROOT / "drafters" / name
    if not folder.is_dir():
        folder = Path(name)
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        return f"{name} has no config.json and weights"
    if not target.is_dir():
        return None  # nothing to compare with yet
    return _mismatch(name, folder, target)


def _mismatch(name: str, folder: Path, target: Path) -> str | None:
    wanted = _sha256(target / "tokenizer.json")
    if (folder / "tokenizer.json").is_file():
        return None if _sha256(folder / "tokenizer.json") == wanted else f"{name} has another tokenizer"
    told = _read(folder / "drafter.json").get("tokenizer_sha256")
    if told is not None:
        return None if told == wanted else f"{name} was made for another tokenizer"
    ours, theirs = (_read(path / "config.json").get("vocab_size", 0) for path in (folder, target))
    return None if ours <= theirs else f"{name} has {ours} token ids, the target {theirs}"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text())
    return value if isinstance(value, dict) else {}
