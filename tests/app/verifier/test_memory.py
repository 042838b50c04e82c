"""Test which errors are a lack of memory, and for how long they are retried."""

import pytest

from app.verifier import memory
from app.verifier.memory import PATIENCE_S, OutOfMemoryRetry, is_out_of_memory
from tests.app.verifier.parts import HandClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    monkeypatch.setattr(memory, "PAUSE_S", 0.0)
    return HandClock()


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("could not create a primitive descriptor"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (IndexError("index out of range in self"), False),
        (ValueError("out of bounds"), False),
    ],
)
def test_only_a_lack_of_memory_is_retried(clock: HandClock, error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one
    assert OutOfMemoryRetry(clock).may_try_again("r", error) is is_one


def test_retries_last_for_a_while_and_anew_after_each_good_step(clock: HandClock) -> None:
    found = OutOfMemoryRetry(clock)
    for is_over in (False, True):
        assert found.may_try_again("r", MemoryError())
        clock.now_s += 0.9 * PATIENCE_S
        assert found.may_try_again("r", MemoryError())
        if not is_over:
            found.remove("r")
            clock.now_s += PATIENCE_S
    assert found.may_try_again("other", MemoryError()), "each has patience of its own"
    clock.now_s += 0.2 * PATIENCE_S
    assert not found.may_try_again("r", MemoryError())
    assert found.may_try_again("other", MemoryError())
