"""Simulate discrete events: machines that work through their mail, each on its own clock, and a network.

A machine takes all its mail as one batch, as a worker does. What it sends leaves when the work is done, and arrives a
hop later, or by links of stated latency and bandwidth. Nothing here is random.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any, NamedTuple

from lab.simulate.models import SimClock

DELIVER, WAKE, CARRY = 0, 1, 2  # at equal times mail comes in first
Handle = Callable[[list[Any]], float | None]  # mail in; seconds after which to be called without any, or None


class Cores:
    """Cores that machines share: as many work at a time."""

    def __init__(self, count: int = 1) -> None:
        self._free_s = [0.0] * count

    @property
    def free_s(self) -> float:
        """Return when the next one is free."""
        return self._free_s[0]

    def take(self, until_s: float) -> None:
        """Take that one."""
        heapreplace(self._free_s, until_s)


@dataclass(slots=True)
class Machine:
    """A mailbox and the worker that takes from it."""

    name: str
    clock: SimClock
    handle: Handle
    busy_s: float = 0.0  # of its work
    mail: list[Any] = field(default_factory=list)
    alarm: int = -1  # the event that wakes it next; others are stale
    wakes_s: float = 0.0  # when
    cores: Cores = field(default_factory=Cores)
    since_s: float = 0.0  # when the first of its mail came
    calls_s: float = 0.0  # after it has sent or has no work left, until it takes mail: round trips to a store elsewhere
    resting_s: float = 0.0  # of these, after the last work


class Link(NamedTuple):
    """A link between a machine and the centre of a star, with a queue of its own each way."""

    latency_s: float
    bits_per_s: float


@dataclass(slots=True)
class Wire:
    """A link in use; machines that have the same one share its queues."""

    link: Link
    free_s: dict[str, float] = field(default_factory=lambda: {"up": 0.0, "down": 0.0})

    def carry(self, way: str, at_s: float, bits: int) -> float:
        """Return when a message that reaches the link at `at_s` has passed it."""
        self.free_s[way] = max(at_s, self.free_s[way]) + bits / self.link.bits_per_s
        return self.free_s[way] + self.link.latency_s


class Network:
    """All machines, and the messages between them; `now_s` is the time of the present event."""

    def __init__(self, hop_s: float, wires: Mapping[str, Wire] | None = None) -> None:
        """Let each message take `hop_s`, or with `wires`, by machine, pass the sender's and the receiver's.

        A machine without a wire is in the centre. Messages queue at a wire in the order in which they reach it.
        """
        self.now_s = 0.0
        self.machines: dict[str, Machine] = {}
        self._hop_s = hop_s
        self._wires = wires or {}
        self._sender = ""  # the machine at work
        self._has_sent = False  # that machine, in this work
        self._events: list[tuple[float, int, int, str, Any]] = []
        self._order = count()

    def add(self, machine: Machine) -> None:
        self.machines[machine.name] = machine

    def send(self, to: str, message: Any, at_s: float, hop_s: float | None = None) -> None:
        """Send a message that leaves at `at_s` and arrives `hop_s` later (None: as the network has it)."""
        self._has_sent = True
        if hop_s is None and self._wires:
            ways = [(way, name) for way, name in (("up", self._sender), ("down", to)) if name in self._wires]
            self._push(at_s, CARRY, to, (message, ways))
        else:
            self._push(at_s + (self._hop_s if hop_s is None else hop_s), DELIVER, to, message)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Run events in order of time until `is_over`, or until none is left."""
        while self._events and not is_over():
            self.now_s, kind, number, name, message = heappop(self._events)
            machine = self.machines[name]
            if kind == CARRY:
                self._carry(name, *message)
            elif kind == DELIVER:
                machine.since_s = machine.since_s if machine.mail else self.now_s
                machine.mail.append(message)
                ready_s = max(self.now_s, machine.clock.now_s + machine.resting_s)
                if machine.alarm < 0 or ready_s < machine.wakes_s:
                    self._wake(machine, ready_s)  # at once, or when its work is done
            elif number == machine.alarm and machine.cores.free_s > self.now_s:
                self._wake(machine, machine.cores.free_s)
            elif number == machine.alarm:
                self._work(machine)

    def _carry(self, to: str, message: Any, ways: list[tuple[str, str]]) -> None:
        if not ways:
            self._push(self.now_s, DELIVER, to, message)
            return
        (way, name), *others = ways
        at_s = self._wires[name].carry(way, self.now_s, 8 * len(message.json()))
        self._push(at_s, CARRY, to, (message, others))

    def _push(self, at_s: float, kind: int, name: str, message: Any) -> None:
        heappush(self._events, (at_s, kind, next(self._order), name, message))

    def _work(self, machine: Machine) -> None:
        clock = machine.clock
        self._sender = machine.name
        clock.now_s = max(clock.now_s, self.now_s)
        mail, machine.mail, self._has_sent = machine.mail, [], False
        wait_s = machine.handle(mail)
        machine.resting_s = machine.calls_s if self._has_sent or wait_s is None else 0.0
        clock.rest()
        machine.cores.take(clock.now_s)
        machine.busy_s += clock.now_s - self.now_s
        machine.alarm = -1
        if wait_s is not None:
            self._wake(machine, clock.now_s + max(wait_s, machine.resting_s / 2.0))

    def _wake(self, machine: Machine, at_s: float) -> None:
        machine.alarm, machine.wakes_s = next(self._order), at_s
        heappush(self._events, (at_s, WAKE, machine.alarm, machine.name, None))
