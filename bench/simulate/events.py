"""Simulate discrete events: machines that work through their mail, each on a clock of its own, and
a network.

A machine takes all its mail as one batch, as a worker does; what it sends leaves when the work is
done and arrives a hop later. Mail that comes while it works waits. Knows nothing of drafting; has
no randomness.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from bench.simulate.models import SimClock

DELIVER, WAKE = 0, 1  # at equal times mail comes in first
Handle = Callable[[list[Any]], float | None]  # mail in; seconds after which to be called without any, or None


@dataclass(slots=True)
class Core:
    """A core that several machines share: one works at a time."""

    free_s: float = 0.0


@dataclass(slots=True)
class Machine:
    """A mailbox and the worker that takes from it; `busy_s`: the simulated time in which it
    worked."""

    name: str
    clock: SimClock
    handle: Handle
    busy_s: float = 0.0
    mail: list[Any] = field(default_factory=list)
    alarm: int = -1  # the event that wakes it next; others are stale
    core: Core = field(default_factory=Core)
    calls_s: float = 0.0  # after work it takes no mail for so long: its calls of a store elsewhere are round trips


class Network:
    """All machines, and the messages between them; `now_s`: the simulated time of the present
    event."""

    def __init__(self, hop_s: float) -> None:
        self.now_s = 0.0
        self.machines: dict[str, Machine] = {}
        self._hop_s = hop_s
        self._events: list[tuple[float, int, int, str, Any]] = []
        self._order = count()

    def add(self, machine: Machine) -> None:
        """Add a machine under its name."""
        self.machines[machine.name] = machine

    def send(self, to: str, message: Any, at_s: float, hop_s: float | None = None) -> None:
        """Send a message that leaves at `at_s` and arrives `hop_s` later (None: the network's)."""
        arrives_s = at_s + (self._hop_s if hop_s is None else hop_s)
        heappush(self._events, (arrives_s, DELIVER, next(self._order), to, message))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Run events in order of time until `is_over`, or until none is left."""
        while self._events and not is_over():
            self.now_s, kind, number, name, message = heappop(self._events)
            machine = self.machines[name]
            if kind == DELIVER:
                machine.mail.append(message)
                ready_s = machine.clock.now_s + machine.calls_s
                self._wake(machine, max(self.now_s, ready_s))  # at once, or when its work is done
            elif number == machine.alarm and machine.core.free_s > self.now_s:
                self._wake(machine, machine.core.free_s)
            elif number == machine.alarm:
                self._work(machine)

    def _work(self, machine: Machine) -> None:
        clock = machine.clock
        clock.now_s = max(clock.now_s, self.now_s)
        mail, machine.mail = machine.mail, []
        wait_s = machine.handle(mail)
        clock.rest()
        machine.core.free_s = clock.now_s
        machine.busy_s += clock.now_s - self.now_s
        machine.alarm = -1
        if wait_s is not None:
            self._wake(machine, clock.now_s + max(wait_s, machine.calls_s / 2.0))

    def _wake(self, machine: Machine, at_s: float) -> None:
        machine.alarm = next(self._order)
        heappush(self._events, (at_s, WAKE, machine.alarm, machine.name, None))
