"""Run real code of several processes over a real Redis, one call at a time, in every relevant order.

Each actor is a thread that stops before whatever it sends to Redis, its own commands and those of Celery and kombu.
A schedule says who goes on; a killed actor sends nothing any more, not even from its `finally` blocks. What most
schedules would do anyway is left out: an actor goes on until it ends, but for a few deviations (a switch or a kill).
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from redis.connection import AbstractConnection

Actors = Mapping[str, Callable[[], object]]
GREETINGS = (b"HELLO", b"AUTH", b"SELECT", b"CLIENT", b"PING")  # of a new connection: what one schedule needs more
LIMIT_S = 20.0  # of one step; longer is a deadlock


class Killed(BaseException):
    """Raised in a killed actor in place of its next call."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A step at which `actor` goes on in place of the next one, or, if `kills`, dies."""

    step: int
    actor: str
    kills: bool


Plan = tuple[Deviation, ...]
Trace = list[tuple[str, tuple[str, ...]]]  # of each step: who would have gone on, and who else could have


def explore(actors: Callable[[], Actors], check: Callable[[Plan], None], deviations: int = 2, kills: int = 1) -> int:
    """Run every schedule with at most so many deviations, so many of them kills; return their number.

    `actors` sets the scene anew for each; `check` looks at what came of it.
    """
    run(actors(), ())  # opens connections, loads scripts: what the others need not do again
    waiting: list[Plan] = [()]
    count = 0
    while waiting:
        plan = waiting.pop()
        trace = run(actors(), plan)
        check(plan)
        count += 1
        if len(plan) < deviations:
            may_kill = sum(deviation.kills for deviation in plan) < kills
            waiting += [(*plan, more) for more in _more(trace, plan[-1].step + 1 if plan else 0, may_kill)]
    return count


def run(actors: Actors, plan: Plan) -> Trace:
    """Run one schedule to the end of every actor. Raises what an actor raised."""
    with _gated() as gate:
        stages = [_Stage(name, act) for name, act in actors.items()]
        gate.update({stage.thread: stage for stage in stages})
        for stage in stages:
            stage.begin()
        planned = {deviation.step: deviation for deviation in plan}
        trace: Trace = []
        present = stages[0]
        while parked := [stage for stage in stages if not stage.is_over]:
            present = present if present in parked else parked[0]
            trace.append((present.name, tuple(stage.name for stage in parked if stage is not present)))
            deviation = planned.get(len(trace) - 1)
            if deviation is not None:  # whose actor may have ended: what died before left connections to be made anew
                present = next((stage for stage in parked if stage.name == deviation.actor), present)
            present.go_on(dies=deviation is not None and deviation.kills)
    errors = [stage.error for stage in stages if stage.error is not None]
    if errors:
        raise errors[0]
    return trace


def _more(trace: Trace, first: int, may_kill: bool) -> Iterator[Deviation]:
    for step in range(first, len(trace)):
        present, others = trace[step]
        yield from (Deviation(step, other, False) for other in others)
        if may_kill:
            yield Deviation(step, present, True)


class _Stage:
    """An actor and its position."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        self.name = name
        self.is_over = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._act = act
        self._is_dead = False
        self._may_go, self._is_parked = threading.Semaphore(0), threading.Semaphore(0)

    def begin(self) -> None:
        """Run up to its first call."""
        self.thread.start()
        self._await()

    def go_on(self, *, dies: bool) -> None:
        """Run up to its next call, or its end."""
        self._is_dead = self._is_dead or dies
        self._may_go.release()
        self._await()

    def stop(self) -> None:
        """Wait for the actor's turn; called by the actor."""
        if not self._is_dead:
            self._is_parked.release()
            assert self._may_go.acquire(timeout=LIMIT_S)
        if self._is_dead:
            raise Killed

    def _await(self) -> None:
        assert self._is_parked.acquire(timeout=LIMIT_S), f"{self.name} does not come back"

    def _run(self) -> None:
        try:
            self._act()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.is_over = True
            self._is_parked.release()


@contextmanager
def _gated() -> Iterator[dict[threading.Thread, _Stage]]:
    """Make the threads in the dictionary stop before they send."""
    gate: dict[threading.Thread, _Stage] = {}
    send = AbstractConnection.send_packed_command

    def stop_and_send(self: AbstractConnection, command: Any, check_health: bool = True) -> None:
        stage = gate.get(threading.current_thread())
        text = command if isinstance(command, bytes) else b"".join(command)
        if stage is not None and text.split(b"\r\n", 3)[2].upper() not in GREETINGS:
            stage.stop()
        send(self, command, check_health)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AbstractConnection, "send_packed_command", stop_and_send)
        yield gate
