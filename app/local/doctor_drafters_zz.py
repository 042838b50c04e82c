"""Whether the drafters' folders are whole and speak the target's tokens. Reads files only."""

import hashlib
import json
from pathlib import Path
from typing import Any

from app.config import Settings
from app.engine.weights.resolve import drafter_folder


def drafters_problems(settings: Settings, target: Path) -> list[str]:
    """What is wrong with the drafters that the settings name, by variable; without `target` its tokens are not
    compared."""
    found = [problem for name in settings.drafters if (problem := drafter_problem(name, target))]
    said = [f"PACELINE_DRAFTERS: {'; '.join(found)}"] if found else []
    if settings.phrases != "none" and not (drafter_folder(settings.phrases) / "drafter.json").is_file():
        said.append(f"PACELINE_PHRASES: there is no store of phrases {settings.phrases!r}, nor is it 'none'")
    return said


def drafter_problem(name: str, target: Path) -> str | None:
    """What is wrong with a drafter (a name in drafters/ or a folder); None if nothing is."""
    folder = drafter_folder(name)
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        return f"there is no drafter {name!r} in drafters/, nor a folder of that name with config.json and weights"
    if not target.is_dir():
        return None  # nothing to compare with yet
    try:
        return _mismatch(name, folder, target)
    except (OSError, ValueError, TypeError) as error:
        return f"{name} cannot be read: {error}"


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
