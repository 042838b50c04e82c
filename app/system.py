"""Files that are there whole or not at all, whatever kills us."""

import os
from collections.abc import Callable
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
