"""What each report begins with: the command that made it, the machine it ran on, the day."""

import os
import platform
import sys
import time
from collections.abc import Sequence as Listed
from importlib.metadata import version
from typing import Any

from app.system import processor

COUNTED = ("torch", "transformers", "celery", "redis")  # packages whose versions change figures


def heading(command: str, argv: Listed[str] | None) -> dict[str, Any]:
    """`command` as after `./paceline`, with its arguments: `argv`, or this process's."""
    words = ["./paceline", command, *(sys.argv[1:] if argv is None else argv)]
    return {"command": " ".join(words), "machine": machine(), "at": today()}


def machine() -> dict[str, Any]:
    """Processor, cores, and the versions of what does the work."""
    packages = {name: version(name) for name in COUNTED}
    return {"cpu": processor(), "cores": os.cpu_count(), "python": platform.python_version(), **packages}


def today() -> str:
    return time.strftime("%Y-%m-%d")
