"""Explore every interleaving of a few processes whose steps are atomic calls, with crashes at any point.

A process is a generator that yields calls and is sent their replies, so its place follows from the
replies it had. Two paths that lead to the same state and the same replies are one world, explored
once; of a process that has finished or crashed nothing is remembered.
"""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

Call = tuple[Any, ...]
Process = Callable[[], Generator[Call, Any, None]]
Replies = tuple[tuple[Hashable, ...] | None, ...]


@dataclass(frozen=True)
class World:
    """The shared state, and the replies that every process has had."""

    state: Any
    replies: Replies  # None: the process finished or crashed
    is_disturbed: bool = False  # a crash or an expiry has happened


@dataclass(frozen=True)
class Step:
    """One edge: a call out of a process or the environment, or a crash (no call)."""

    before: World
    after: World
    call: Call | None
    reply: Any = None

    @property
    def is_move(self) -> bool:
        """Tell whether a process went on: neither crash nor environment."""
        return self.call is not None and self.before.replies != self.after.replies


class Explorer:
    """All worlds reachable from `start`.

    `apply(state, call)` gives (state, reply), or None while the call would block;
    `environment(state)` lists calls that may happen at any time without a process, such as a lease
    running out.
    """

    def __init__(
        self,
        processes: list[Process],
        start: Any,
        apply: Callable[[Any, Call], tuple[Any, Any] | None],
        environment: Callable[[Any], list[Call]],
    ) -> None:
        self._processes = processes
        self._apply = apply
        self._environment = environment
        self._start = World(start, tuple(() for _ in processes))
        self._calls: dict[tuple[int, tuple[Hashable, ...]], Call | None] = {}

    def explore(self, on_step: Callable[[Step], None], on_end: Callable[[World], None]) -> int:
        """Visit every step once, and every world where no process can go on; return the number of worlds."""
        seen, waiting = {self._start}, deque([self._start])
        while waiting:
            world = waiting.popleft()
            is_stuck = True
            for step in self.steps(world):
                is_stuck = is_stuck and not step.is_move
                on_step(step)
                if step.after not in seen:
                    seen.add(step.after)
                    waiting.append(step.after)
            if is_stuck:
                on_end(world)
        return len(seen)

    def walk(self, random: Random) -> Iterator[Step]:
        """Yield one schedule from the start until no process can go on."""
        world = self._start
        while True:
            steps = list(self.steps(world))
            moves = [step for step in steps if step.is_move]
            if not moves:
                return
            step = random.choice(moves if random.random() < 0.9 else steps)
            yield step
            world = step.after

    def steps(self, world: World) -> Iterator[Step]:
        """List everything that can happen next."""
        for index, known in enumerate(world.replies):
            call = None if known is None else self._next(index, known)
            if known is None or call is None:
                continue
            crashed = _replace(world.replies, index, None)
            yield Step(world, replace(world, replies=crashed, is_disturbed=True), None)
            result = self._apply(world.state, call)
            if result is not None:
                state, reply = result
                more = (*known, reply)
                replies = _replace(world.replies, index, more if self._next(index, more) else None)
                yield Step(world, replace(world, state=state, replies=replies), call, reply)
        for call in self._environment(world.state):
            result = self._apply(world.state, call)
            assert result is not None
            yield Step(world, replace(world, state=result[0], is_disturbed=True), call, result[1])

    def _next(self, index: int, replies: tuple[Hashable, ...]) -> Call | None:
        key = (index, replies)
        if key not in self._calls:
            self._calls[key] = _resume(self._processes[index](), replies)
        return self._calls[key]


def _replace(replies: Replies, index: int, known: tuple[Hashable, ...] | None) -> Replies:
    return (*replies[:index], known, *replies[index + 1 :])


def _resume(process: Generator[Call, Any, None], replies: tuple[Hashable, ...]) -> Call | None:
    try:
        call = next(process)
        for reply in replies:
            call = process.send(reply)
    except StopIteration:
        return None
    return call
