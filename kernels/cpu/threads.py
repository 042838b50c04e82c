"""Run one kernel on several threads: pieces from a shared counter, barriers between parts.

A waiting thread spins for 0.1 ms, then sleeps (docs/decisions/0002); it does not yield, since Linux then runs it last.
"""

import os
import platform
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from kernels.cpu.simd import (
    address,
    at,
    call,
    index,
    nothing,
    op,
)
from kernels.jit import kernel

SPINS = 100_000  # looks before a thread sleeps: twice as long as waking one takes, or each sleep begets the next
HEADER = 24  # words before the counters: see `arrive`
GENERATION, ASLEEP = 64, 128  # bytes from the first of them: each in a cache line of its own
DOZE_NS = 1_000_000  # longest sleep at a barrier
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
WAIT, WAKE = 128, 129  # of threads of one process
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


@op(nothing, address, index)
def doze(b: ir.IRBuilder, where: Any, value: Any) -> Any:
    """Sleep until `wake` is called for this word, for DOZE_NS at most; return at once unless it holds `value`."""
    if FUTEX is None:
        call(b, "sched_yield", ir.IntType(32))
        return
    limit = cgutils.alloca_once(b, ir.ArrayType(_I64, 2))
    b.store(ir.Constant(limit.type.pointee, [0, DOZE_NS]), limit)
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

    The words hold the threads that have arrived, the number of the meeting, and the threads asleep.
    """
    generation = fetch(words + GENERATION)
    if threads == 1 or fetch_add(words, 1) == threads - 1:
        return True
    spins = 0
    while fetch(words + GENERATION) == generation:
        spins += 1
        if spins > SPINS:
            fetch_add(words + ASLEEP, 1)
            doze(words + GENERATION, generation)
            fetch_add(words + ASLEEP, -1)
    return False


@kernel
def release(words: int) -> None:
    publish(words, 0)
    fetch_add(words + GENERATION, 1)  # orders the look at the sleepers behind itself
    if fetch(words + ASLEEP) > 0:
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


class Team:
    """A team of `size` threads, the caller among them. One caller at a time may `run`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._job: Callable[[int], object] | None = None
        self._errors: list[BaseException] = []
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        # A lock that is held until the other side lets go: a tenth of what a semaphore costs, which is Python.
        self._starts = [_held() for _ in range(self.size - 1)]
        self._ends = [_held() for _ in range(self.size - 1)]
        for number, ends in enumerate(zip(self._starts, self._ends, strict=True), start=1):
            threading.Thread(target=self._follow, args=(number, *ends), daemon=True, name=f"team-{number}").start()

    def run(self, job: Callable[[int], object]) -> None:
        """Call `job(0)` here and `job(1) ...` in the other threads; wait for all, and raise what one raised."""
        with self._lock:
            if self._process != os.getpid():  # a fork has no threads but the one that forked
                self._start()
            self._job, self._errors = job, []
            for start in self._starts:
                start.release()
            try:
                job(0)
            finally:
                for end in self._ends:
                    end.acquire()
            if self._errors:
                raise self._errors[0]

    def _follow(self, number: int, start: threading.Lock, end: threading.Lock) -> None:
        while True:
            start.acquire()
            assert self._job is not None
            try:
                self._job(number)
            except BaseException as error:  # raised again where the team was called
                self._errors.append(error)
            finally:
                end.release()


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def team(size: int) -> Team:
    """Use the cores of the calling thread."""
    return _team(size, frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset())


@cache
def _team(size: int, cores: frozenset[int]) -> Team:
    return Team(size)  # its threads run where the one that makes it does


def words(counters: int) -> np.ndarray:
    """Return a team's shared memory: (HEADER + counters,) int64, zeroed, for steps of up to `counters` parts."""
    return np.zeros(HEADER + counters, np.int64)
