"""Divide a machine's cores between verifying and drafting in one process, by affinity masks (design D8).

A GPU's multiprocessors are divided by `app.engine.gpu.sm_partition`.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from app.config import Settings
from app.errors import InstanceError


class Side(Protocol):
    @property
    def unit(self) -> str: ...

    @property
    def places(self) -> tuple[int, ...]: ...

    def enter(self) -> None: ...


class Partition(NamedTuple):
    """Both sides; they have the same places where the machine is not divided."""

    verify: Side
    draft: Side

    @property
    def is_real(self) -> bool:
        return not set(self.verify.places) & set(self.draft.places)

    def about(self) -> dict[str, list[int]]:
        sides = {"verify": self.verify, "draft": self.draft}
        return {f"{name}_{side.unit}": [*side.places] for name, side in sides.items()}


class Threaded(Protocol):
    def work_with(self, threads: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Cores:
    places: tuple[int, ...]
    models: tuple[Threaded, ...] = ()
    unit: str = "cores"

    def enter(self) -> None:
        """Bind the calling thread and those that it starts; limit the models to a thread a core."""
        if self.places != cores():
            os.sched_setaffinity(0, self.places)
        for model in self.models:
            model.work_with(len(self.places))


def cores() -> tuple[int, ...]:
    """Return the calling thread's cores, rising."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def units_of(settings: Settings) -> int:
    return 0 if settings.plan.partition == "auto" else settings.plan.partition


def divided_cores(count: int, verify: Iterable[Threaded] = (), draft: Iterable[Threaded] = ()) -> Partition:
    """Give `count` of the calling thread's cores to drafting and the others to verifying; 0: all to both.

    Raises InstanceError if none are left for verifying, or threads cannot be bound.
    """
    everything = cores()
    if count and not hasattr(os, "sched_setaffinity"):
        raise InstanceError("the plan's partition needs a system that binds threads to cores (Linux)")
    if count >= len(everything):
        raise InstanceError(f"the plan's partition of {count} leaves verifying none of {len(everything)} cores")
    ours, theirs = (everything[:-count], everything[-count:]) if count else (everything, everything)
    return Partition(Cores(ours, tuple(verify)), Cores(theirs, tuple(draft)))


def within(settings: Settings, sides: Partition) -> Settings:
    def most(threads: int, side: Side) -> int:
        return min(threads, len(side.places)) if side.unit == "cores" else threads

    return settings.model_copy(
        update={
            "verify_threads": most(settings.verify_threads, sides.verify),
            "draft_threads": most(settings.draft_threads, sides.draft),
        }
    )
