"""Make the head of each report: the command that made it, the plan, the machine it ran on, the day."""

import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence as Listed
from importlib.metadata import version
from typing import Any

from app.config import Settings
from app.system import processor

COUNTED = ("torch", "transformers", "celery", "redis")  # packages whose versions change figures


def heading(command: str, argv: Listed[str] | None) -> dict[str, Any]:
    """Return a report's head; `command` as after `./paceline`, with its arguments: `argv`, or this process's.

    It names the environment's plan and its changed parts; an arm may have a plan of its own.
    """
    words = shlex.join(sys.argv[1:] if argv is None else argv)
    settings = Settings.from_env()
    return {
        "command": f"./paceline {command} {words}".rstrip(),
        "plan": settings.plan.name,
        "overrides": settings.plan.changes(),
        "machine": machine(),
        "at": today(),
    }


def machine() -> dict[str, Any]:
    """Return processor, cores, and the versions of the packages that change figures."""
    packages = {name: version(name) for name in COUNTED}
    return {"cpu": processor(), "cores": os.cpu_count(), "python": platform.python_version(), **packages}


def today() -> str:
    """Return the local date, YYYY-MM-DD."""
    return time.strftime("%Y-%m-%d")
