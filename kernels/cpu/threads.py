"""Run one kernel on several threads: pieces from a shared counter, barriers between parts.

A waiting thread spins for 0.1 ms, then sleeps (docs/decisions/0002); it does not yield, since Linux then runs it last.
Between jobs a team's threads wait in the same way, in compiled code.
"""

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu.simd import (
    address,
    at,
    call,
    call_with,
    index,
    nothing,
    op,
)
from kernels.jit import entry, kernel

SPINS = 100_000  # looks before a thread sleeps: twice as long as waking one takes, or each sleep begets the next
HEADER = 24  # words before the counters: see `arrive`
GENERATION, ASLEEP = 64, 128  # bytes from the first of them: each in a cache line of its own
CODE, JOB = 136, 144  # what a team's threads are to run
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
WAIT, WAKE = 128, 129  # of threads of one process
# The first sleep at a barrier, unless it is ended sooner, and the longest: each is twice as long as the one before.
DOZE_NS, LONGEST_NS = (1_000_000, 128_000_000) if FUTEX else (50_000, 1_000_000)
_I64 = ir.IntType(64)


@op(index, address, index)
def fetch_add(b: ir.IRBuilder, where: Any, value: Any) -> Any:
    return b.atomic_rmw("add", at(b, where, _I64), value, "seq_cst")


@op(index, address)
def fetch(b: ir.IRBuilder, where: Any) -> Any:
    return b.load_atomic(at(b, where, _I64), "acquire", 8)


@op(nothing, address, index)
def publish(b: ir.IRBuilder, where: Any, value: Any) -> Any:
    b.store_atomic(value, at(b, where, _I64), "release", 8)


@op(nothing, address, index, index)
def doze(b: ir.IRBuilder, where: Any, value: Any, limit_ns: Any) -> Any:
    """Sleep until `wake` is called for this word, for `limit_ns` < 1 s at most; return at once unless it holds `value`.

    Without futexes it sleeps for that time.
    """
    if FUTEX is None:
        call(b, "usleep", ir.IntType(32), b.trunc(b.udiv(limit_ns, ir.Constant(_I64, 1000)), ir.IntType(32)))
        return
    limit = cgutils.alloca_once(b, ir.ArrayType(_I64, 2))
    b.store(b.insert_value(ir.Constant(limit.type.pointee, [0, 0]), limit_ns, 1), limit)
    _syscall(b, FUTEX, where, WAIT, value, b.ptrtoint(limit, _I64))


@op(nothing, address)
def wake(b: ir.IRBuilder, where: Any) -> Any:
    if FUTEX is not None:
        _syscall(b, FUTEX, where, WAKE, 2**31 - 1)


def _syscall(b: ir.IRBuilder, *arguments: Any) -> None:
    numbers = [ir.Constant(_I64, one) if isinstance(one, int) else one for one in arguments]
    call(b, "syscall", _I64, *numbers, *[ir.Constant(_I64, 0)] * (7 - len(numbers)))


@kernel
def take(words: int, counter: int, pieces: int) -> int:
    return fetch_add(words + 8 * (HEADER + counter), pieces)


@kernel
def meet(words: int, threads: int) -> None:
    """Wait for all threads; their writes before it are visible after it."""
    if arrive(words, threads):
        release(words)


@kernel
def arrive(words: int, threads: int) -> bool:
    """Wait for all threads; the last to come goes on alone (True), until it lets the others go (`release`).

    The words hold the threads that have arrived, the number of the meeting, and the threads asleep. The words of a team
    also hold its job.
    """
    generation = fetch(words + GENERATION)
    if threads == 1 or fetch_add(words, 1) == threads - 1:
        return True
    spins, limit_ns = 0, DOZE_NS
    while fetch(words + GENERATION) == generation:
        spins += 1
        if spins > SPINS:
            fetch_add(words + ASLEEP, 1)
            doze(words + GENERATION, generation, limit_ns)
            fetch_add(words + ASLEEP, -1)
            limit_ns = min(2 * limit_ns, LONGEST_NS)
    return False


@kernel
def release(words: int) -> None:
    publish(words, 0)
    fetch_add(words + GENERATION, 1)  # orders the look at the sleepers behind itself
    if fetch_add(words + ASLEEP, 0) > 0:
        wake(words + GENERATION)


@kernel
def enter(words: int, threads: int, pieces: int) -> bool:
    """Wait for all threads, and tell whether this one works on a part of so many pieces; then it may `leave`.

    A single piece is left to the last to come: the others could only wait for it, and do so without meeting again.
    """
    if pieces == 1:
        return arrive(words, threads)
    meet(words, threads)
    return True


@kernel
def leave(words: int, threads: int, pieces: int, worked: bool) -> None:
    """Wait until the part that was entered is done."""
    if pieces != 1:
        meet(words, threads)
    elif worked:
        release(words)


run_job = call_with(2)  # of a job's code: the job's address, and the thread's number


@kernel
def lead(words: int, threads: int, code: int, job: int) -> None:
    """Run a job on the team whose words these are, here as thread 0; wait for all threads."""
    publish(words + CODE, code)
    publish(words + JOB, job)
    meet(words, threads)
    run_job(code, job, 0)
    meet(words, threads)


@entry
def follow(words: np.ndarray, threads: int, number: int) -> None:
    """Run the team's jobs as this thread. It never returns, so the array of words is never freed."""
    at_words = words.ctypes.data
    while True:
        meet(at_words, threads)
        run_job(fetch(at_words + CODE), fetch(at_words + JOB), number)
        meet(at_words, threads)


@entry
def lead_python(words: int, threads: int, code: int) -> None:
    lead(words, threads, code, 0)


class Team:
    """A team of `size` threads, the caller among them. One caller at a time may `run` or `lead`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._job: Callable[[int], object] | None = None
        self._errors: list[BaseException] = []
        self._code = ctypes.CFUNCTYPE(None, ctypes.c_ssize_t, ctypes.c_ssize_t)(self._share)
        self._start()

    def _start(self) -> None:
        own = words(0)
        if self.size > 1:  # compiled here, where an error is seen
            cast(Any, follow).compile((types.int64[::1], types.intp, types.intp))
        for number in range(1, self.size):
            args = own, self.size, number
            threading.Thread(target=follow, args=args, daemon=True, name=f"team-{number}").start()
        self._process, self._words = os.getpid(), own

    def run(self, job: Callable[[int], object]) -> None:
        """Call `job(0)` here and `job(1) ...` in the other threads; wait for all, and raise what one raised."""
        with self._lock:
            self._job, self._errors = job, []
            self._lead(lead_python, ctypes.cast(self._code, ctypes.c_void_p).value)
            if self._errors:
                raise self._errors[0]

    def lead(self, run: Callable[..., None], *args: object) -> None:
        """Call `run(words, size, *args)`, an `entry` that leads the team, without the interpreter's lock."""
        with self._lock:
            self._lead(run, *args)

    def _lead(self, run: Callable[..., None], *args: object) -> None:
        if self._process != os.getpid():  # a fork has no threads but the one that forked
            self._start()
        run(self._words.ctypes.data, self.size, *args)

    def _share(self, _: int, thread: int) -> None:
        assert self._job is not None
        try:
            self._job(thread)
        except BaseException as error:  # raised again where the team was called
            self._errors.append(error)


def team(size: int) -> Team:
    """Use the cores of the calling thread."""
    return _team(size, frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset())


@cache
def _team(size: int, cores: frozenset[int]) -> Team:
    return Team(size)  # its threads run where the one that makes it does


def words(counters: int) -> np.ndarray:
    """Return a team's shared memory: (HEADER + counters,) int64, zeroed, for steps of up to `counters` parts."""
    return np.zeros(HEADER + counters, np.int64)
