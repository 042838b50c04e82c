"""Compile the CPU's kernels with numba, without the interpreter's lock, once a machine.

Compiled code lies in NUMBA_CACHE_DIR, or beside this file, in a folder named after a digest of the
sources: numba itself looks only at the file of the outermost function, and would go on with stale
code after a change to what that calls.
"""

import fcntl
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])
GIVEN: str | None = vars(numba.config)["CACHE_DIR"]  # as the environment has it; `entry` sets it anew


def kernel(function: F) -> F:
    """Compile a function for calls from other kernels."""
    return cast(F, numba.njit(nogil=True)(function))


def entry(function: F) -> F:
    """Compile a function for calls from Python, and keep the compiled code."""
    folder = _cache()
    vars(numba.config)["CACHE_DIR"] = str(folder)
    compiled = numba.njit(nogil=True, cache=True)(function)
    files = vars(compiled)["_cache"]._cache_file
    files.save = one_at_a_time(folder / "lock", files.save)
    return cast(F, compiled)


def one_at_a_time(lock: Path, save: Callable[..., None]) -> Callable[..., None]:
    """Return `save` behind a lock that all processes share.

    numba reads its index, numbers a new file and writes the index again: two processes that did so
    together would give two functions one file.
    """

    def locked(*args: Any) -> None:
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            save(*args)

    return locked


def _cache() -> Path:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    places = [Path(GIVEN) / digest] if GIVEN else []
    places += [Path(__file__).parent / "__pycache__" / digest, Path(tempfile.gettempdir()) / f"paceline-{digest}"]
    for folder in places:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        return folder
    raise OSError("nowhere to keep compiled kernels")
