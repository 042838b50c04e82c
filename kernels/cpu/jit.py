"""How the CPU's kernels are compiled: by numba, without the interpreter's lock, once a machine.

Compiled code lies in NUMBA_CACHE_DIR, or beside this file, in a folder named after a digest of the sources: numba
itself looks only at the file of the outermost function, and would go on with stale code after a change to what that
calls.
"""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])
GIVEN: str | None = vars(numba.config)["CACHE_DIR"]  # as the environment has it; `entry` sets it anew


def kernel(function: F) -> F:
    """Compile for calls from other kernels."""
    return cast(F, numba.njit(nogil=True)(function))


def entry(function: F) -> F:
    """Compile for calls from Python, and keep the compiled code."""
    vars(numba.config)["CACHE_DIR"] = str(_cache())
    return cast(F, numba.njit(nogil=True, cache=True)(function))


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
