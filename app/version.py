"""Tell which version this is: a clone's, or the installed package's."""

import tomllib

from app.config import IS_CLONE, ROOT
from app.system import installed


def version() -> str:
    if IS_CLONE:
        return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
    return installed("paceline") or "of unknown version"
