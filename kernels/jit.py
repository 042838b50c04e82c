"""Compile the CPU's kernels with numba, without the interpreter's lock, once a machine.

Compiled code lies in NUMBA_CACHE_DIR, or beside this file, in a folder named by a digest of all sources, of which
numba checks only the outermost function's, and of numba's version: another one writes over the index of a function.
"""

import fcntl
import hashlib
import itertools
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.core import sigutils
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
njit: Any = numba.njit  # whose declared arguments lack some
COMPILE_S = 120.0  # longest wait for another process that compiles the same: it may be frozen
POLL_S = 0.05
_numbers = itertools.count(1)  # of the kernels that this process compiles
GIVEN: str | None = vars(numba.config)["CACHE_DIR"]  # as the environment has it; `entry` sets it anew


def kernel(function: F) -> F:
    """Compile for other kernels alone: what Python would call it by takes a third of the time to compile."""
    return cast(F, njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))


def entry(function: F) -> F:
    folder = _cache()
    vars(numba.config)["CACHE_DIR"] = str(folder)
    compiled = njit(nogil=True, cache=True, no_cfunc_wrapper=True)(function)
    _watch(vars(compiled)["_cache"], folder, function)
    vars(compiled)["compile"] = compiled_once(folder / f"{function.__qualname__}.lock", compiled.compile)
    return cast(F, compiled)


class Native:
    """A kernel that compiled code calls by its address, compiled and cached when the address is first read."""

    def __init__(self, function: Callable[..., None], name: str, arguments: int) -> None:
        function.__name__ = function.__qualname__ = name
        self._function = function
        self._signature = types.void(*[types.intp] * arguments)

    @cached_property
    def address(self) -> int:
        folder = _cache()
        vars(numba.config)["CACHE_DIR"] = str(folder)
        compiled = CFunc(self._function, sigutils.normalize_signature(self._signature), {}, {"nogil": True})
        cache = _NamedCache(self._function)
        vars(compiled)["_cache"] = cache
        _watch(cache, folder, self._function)
        compiled_once(folder / f"{self._function.__qualname__}.lock", compiled.compile)()
        self._code = compiled
        address = compiled.address
        assert address is not None
        return address


class _NamedCache(FunctionCache):
    """Cache by a function's name: numba's key hashes a closure's contents, which differ between processes."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return sig, codegen.magic_tuple(), self._py_func.__qualname__


def _watch(cache: FunctionCache, folder: Path, function: Callable[..., Any]) -> None:
    """Let one process at a time write to the cache, and log what is not in it yet."""
    files, load = cache._cache_file, cache.load_overload
    vars(files)["save"] = one_at_a_time(folder / "lock", files.save)

    def loaded(*args: Any) -> Any:
        found = load(*args)
        if found is None:
            log.info("compiling kernel %d: %s", next(_numbers), function.__qualname__)
        return found

    vars(cache)["load_overload"] = loaded


def one_at_a_time(lock: Path, save: Callable[..., None]) -> Callable[..., None]:
    def locked(*args: Any) -> None:
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            save(*args)

    return locked


def compiled_once(lock: Path, compile_: Callable[..., Any]) -> Callable[..., Any]:

    def locked(*args: Any) -> Any:
        with global_compiler_lock, _held(lock):  # in the order in which a kernel's compilation asks for another's
            return compile_(*args)

    return locked


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    try:
        file = lock.open("a")
    except OSError:  # a folder that is not ours to write: nothing can be kept there, either
        yield
        return
    with file:
        deadline, is_first = time.monotonic() + COMPILE_S, True
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if is_first:
                    log.info("waiting for another process that compiles %s", lock.stem)
                is_first = False
                time.sleep(POLL_S)
            except OSError:  # a disk without locks
                break
        yield


def _cache() -> Path:
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    contents = [numba.__version__.encode(), *(path.read_bytes() for path in sources)]
    digest = hashlib.sha256(b"".join(contents)).hexdigest()[:16]
    places = [Path(GIVEN) / digest] if GIVEN else []
    places += [Path(__file__).parent / "__pycache__" / digest, Path(tempfile.gettempdir()) / f"paceline-{digest}"]
    for folder in places:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        return folder
    raise OSError("nowhere to keep compiled kernels")
