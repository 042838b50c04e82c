"""Test that a team's threads share the pieces, meet at barriers, and survive a job that fails."""

import os
import signal
import threading
import time
from pathlib import Path

import numba
import numpy as np
import pytest

from kernels.cpu.threads import (
    ASLEEP,
    HEADER,
    Team,
    enter,
    fetch_add,
    lead,
    leave,
    meet,
    take,
    team,
    words,
)
from kernels.jit import Native

PARTS = 300


@numba.njit(nogil=True)
def add_up(memory, threads, cells, seen):
    """Add one to each cell in every part, a piece at a time; between parts all cells must agree."""
    at, pieces = memory.ctypes.data, len(cells)
    for part in range(PARTS):
        works = enter(at, threads, pieces)
        while works:
            piece = take(at, part, 2)
            if piece >= pieces:
                break
            for i in range(piece, min(piece + 2, pieces)):
                cells[i] += 1
        leave(at, threads, pieces, works)
        for i in range(pieces):
            seen[0] += cells[i] != part + 1


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_piece_is_done_once_and_no_thread_runs_ahead(size, pieces):
    team = Team(size)
    for _ in range(3):
        memory, cells = words(PARTS), np.zeros(pieces, np.int64)
        wrong = [np.zeros(1, np.int64) for _ in range(size)]
        team.run(lambda thread, m=memory, c=cells, w=wrong: add_up(m, size, c, w[thread]))
        assert (cells == PARTS).all()
        assert not any(w[0] for w in wrong)
        assert len(memory) == HEADER + PARTS


@numba.njit(nogil=True)
def one_meeting(memory, threads):
    meet(memory.ctypes.data, threads)


def test_a_thread_that_waits_long_sleeps_and_is_woken_by_the_last():
    team, memory, busy_s, took_s = Team(2), words(0), {}, {}

    def job(thread: int) -> None:
        started, busy = time.monotonic(), time.thread_time()
        for _ in range(20):
            if thread == 1:
                time.sleep(0.02)
            one_meeting(memory, 2)
        took_s[thread], busy_s[thread] = time.monotonic() - started, time.thread_time() - busy

    one_meeting(memory, 1)  # compiled
    team.run(job)
    assert took_s[0] >= 0.4 and busy_s[0] < 0.5 * took_s[0], "a thread that spins is busy all the time"
    assert memory[ASLEEP // 8] == 0, "nobody is counted as asleep"


def _count(job: int, thread: int) -> None:
    fetch_add(job + 8 * thread, 1)


COUNT = Native(_count, "count_jobs", 2)


@numba.njit(nogil=True)
def count_jobs(at, threads, code, cells, jobs):
    for _ in range(jobs):
        lead(at, threads, code, cells.ctypes.data)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_thread_runs_every_compiled_job_once(size):
    team, cells = Team(size), np.zeros(size, np.int64)
    for jobs in (1, 100):
        team.lead(count_jobs, COUNT.address, cells, jobs)
        time.sleep(0.003)  # the others sleep now
    assert cells.tolist() == [101] * size


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no count of a thread's sleeps")
def test_threads_without_a_job_sleep_ever_longer():
    before = {*threading.enumerate()}
    team, cells = Team(3), np.zeros(3, np.int64)
    team.lead(count_jobs, COUNT.address, cells, 1)
    time.sleep(0.2)
    own = [thread.native_id for thread in {*threading.enumerate()} - before]
    slept = sum(map(sleeps_of, own))
    time.sleep(0.5)
    assert len(own) == 2 and slept >= 2
    assert 0 < sum(map(sleeps_of, own)) - slept < 100, "two that wake each ms do so 1,000 times"


def sleeps_of(thread: int) -> int:
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_fork_has_a_team_again():
    team, cells = Team(2), np.zeros(2, np.int64)
    team.lead(count_jobs, COUNT.address, cells, 1)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a team without threads waits for ever
        try:
            team.lead(count_jobs, COUNT.address, cells, 1)
        finally:
            os._exit(int(cells.tolist() != [2, 2]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_team_that_is_gone_takes_no_part_in_the_next_ones_jobs():
    """Its threads go on, and their words must not be those of another team."""
    for _ in range(20):
        seen: list[int] = []
        Team(3).run(seen.append)
        assert sorted(seen) == [0, 1, 2]


def test_each_thread_has_its_own_number():
    team, seen = Team(4), []
    team.run(seen.append)
    assert sorted(seen) == [0, 1, 2, 3]


def test_a_job_that_fails_beside_does_not_hold_the_team_up():
    team, seen = Team(2), []

    def fail(thread: int) -> None:
        if thread:
            raise ValueError("beside")

    with pytest.raises(ValueError, match="beside"):
        team.run(fail)
    team.run(seen.append)
    assert sorted(seen) == [0, 1]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or os.cpu_count() == 1, reason="one core, or none to choose")
def test_a_caller_on_other_cores_has_a_team_of_its_own():
    everything = os.sched_getaffinity(0)
    first = {min(everything)}
    seen = []

    def run():
        os.sched_setaffinity(0, first)
        bound = team(2)
        bound.run(lambda thread: seen.append(os.sched_getaffinity(0)))
        seen.append(bound)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen[:2] == [first, first]
    assert seen[2] is not team(2) and team(2) is team(2)
