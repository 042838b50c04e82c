"""Divide a machine's cores between verifying and drafting in one process (design D8).

Cores are kept apart by the kernel's affinity masks: a thread that is bound, and those that it starts, run nowhere
else. A GPU's multiprocessors are divided by `app.engine.gpu.sm_partition`.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from app.config import Settings
from app.errors import InstanceError


class Side(Protocol):
    """The part of a machine that verifying or drafting may use."""

    @property
    def unit(self) -> str:
        """Name the units that are divided: cores, for one."""
        ...

    @property
    def places(self) -> tuple[int, ...]:
        """Return the numbers of this side's units."""
        ...

    def enter(self) -> None:
        """Bind the calling thread to this side from now on."""
        ...


class Partition(NamedTuple):
    """Both sides; they have the same places where nothing is kept apart."""

    verify: Side
    draft: Side

    @property
    def is_real(self) -> bool:
        """Tell whether no place belongs to both sides."""
        return not set(self.verify.places) & set(self.draft.places)

    def about(self) -> dict[str, list[int]]:
        """Return each side's places by name, for status and logs."""
        sides = {"verify": self.verify, "draft": self.draft}
        return {f"{name}_{side.unit}": [*side.places] for name, side in sides.items()}


class Threaded(Protocol):
    """A model whose threads can be another number of from one pass to the next."""

    def work_with(self, threads: int) -> None:
        """Run on so many threads from the next pass on, where the calling thread may run."""
        ...


@dataclass(frozen=True, slots=True)
class Cores:
    """Some of a machine's cores, and models that then have a thread for each core at most."""

    places: tuple[int, ...]
    models: tuple[Threaded, ...] = ()
    unit: str = "cores"

    def enter(self) -> None:
        """Bind the calling thread, and those that it starts, to these cores."""
        if self.places != cores():
            os.sched_setaffinity(0, self.places)
        for model in self.models:
            model.work_with(len(self.places))


def cores() -> tuple[int, ...]:
    """Return the cores that the calling thread may run on, rising."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def units_of(settings: Settings) -> int:
    """Return the units that the plan keeps for drafting from the start on."""
    return 0 if settings.plan.partition == "auto" else settings.plan.partition


def divided_cores(count: int, verify: Iterable[Threaded] = (), draft: Iterable[Threaded] = ()) -> Partition:
    """Give `count` of the calling thread's cores to drafting and the others to verifying; 0: all to both.

    `verify`, `draft`: the models of each side. Raises InstanceError where that leaves verifying none, or the system
    cannot bind threads to cores.
    """
    everything = cores()
    if count and not hasattr(os, "sched_setaffinity"):
        raise InstanceError("the plan's partition needs a system that binds threads to cores (Linux)")
    if count >= len(everything):
        raise InstanceError(f"the plan's partition of {count} leaves verifying none of {len(everything)} cores")
    ours, theirs = (everything[:-count], everything[-count:]) if count else (everything, everything)
    return Partition(Cores(ours, tuple(verify)), Cores(theirs, tuple(draft)))


def within(settings: Settings, sides: Partition) -> Settings:
    """Return the settings with no more threads on a side than it has cores."""

    def most(threads: int, side: Side) -> int:
        return min(threads, len(side.places)) if side.unit == "cores" else threads

    return settings.model_copy(
        update={
            "verify_threads": most(settings.verify_threads, sides.verify),
            "draft_threads": most(settings.draft_threads, sides.draft),
        }
    )
