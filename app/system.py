"""Write files atomically, lock them, give back memory, and look up processor and libraries."""

import ctypes
import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, text: str) -> None:
    make_whole(path, lambda scratch: scratch.write_text(text))


def make_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make the file under another name, and rename it once it is on the disk."""
    scratch = path.with_name(f".{path.name}.{uuid4().hex}.part")  # another container may make the same file now
    try:
        write(scratch)
        with scratch.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


@contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """Hold a lock file for the block; gives False when another process holds it."""
    # Where others may write, the name may be their link to a file of ours: it is neither followed nor emptied.
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def trim_heap() -> None:
    """Return free heap memory to the system, with glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def installed(library: str) -> str | None:
    """None if it is not installed."""
    try:
        return version(library)
    except PackageNotFoundError:
        return None
