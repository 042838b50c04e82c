"""Digest a model, the code and the libraries: measurements are kept under the digest.

Weights count by size and time alone.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from app.config import ROOT
from app.system import installed

LIBRARIES = ("torch", "transformers", "numba", "numpy", "triton", "gguf")


def digest(folders: Iterable[Path], **about: object) -> str:
    whole = {
        "models": [_model(folder) for folder in folders],
        "libraries": {name: installed(name) for name in LIBRARIES},
        "code": [hashlib.sha256(path.read_bytes()).hexdigest() for path in _sources()],
        **about,
    }
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:24]


def _model(folder: Path) -> list[object]:
    config = folder / "config.json"
    return [
        config.read_text() if config.is_file() else None,
        *([path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in weight_files(folder)),
    ]


def weight_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.safetensors"), *folder.glob("*.gguf")])


def _sources() -> list[Path]:
    return sorted([*(ROOT / "app" / "engine").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")])
