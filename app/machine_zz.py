"""What a measurement was made on: the processor, the libraries."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def processor() -> str:
    """Its model's name, where the system tells one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def installed(library: str) -> str | None:
    """Its version; None if it is not there."""
    try:
        return version(library)
    except PackageNotFoundError:
        return None
