"""Files that are there whole or not at all, whatever kills us."""

import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text file, taking the place of an older one in one step."""
    make_whole(path, lambda scratch: scratch.write_text(text))


def make_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make the file under another name, and give it its own once it is on the disk."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")  # others may make the same file now
    write(scratch)
    with scratch.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(scratch, path)


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
