"""Write reports, whose head names the command, the plan, the machine and the day."""

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence as Listed
from importlib.metadata import version
from pathlib import Path
from typing import Any

from app.config import STATE, Settings
from app.system import processor

RESULTS = STATE / "results"  # git ignores it: a run must not write over a figure that a page cites
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


def add_out(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the option of the report's file; bench/results has those that pages cite."""
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json", help="file to write")


def write_report(out: Path, report: dict[str, Any]) -> None:
    """Write a report as JSON, and say where; make its folder."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {out}", flush=True)


def machine() -> dict[str, Any]:
    """Return processor, cores, and the versions of the packages that change figures."""
    packages = {name: version(name) for name in COUNTED}
    return {"cpu": processor(), "cores": os.cpu_count(), "python": platform.python_version(), **packages}


def today() -> str:
    """Return the local date, YYYY-MM-DD."""
    return time.strftime("%Y-%m-%d")
