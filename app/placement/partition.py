"""Divide a machine's cores between verifying and drafting in one process (design D8). No torch here.

Settings go in, two sides come out. Cores are kept apart by the kernel's affinity masks: a thread
that is bound, and those that it starts, run nowhere else. Caches and memory stay shared; that cost
is measured (`app.placement.interference`). A GPU's multiprocessors are divided by
`app.engine.gpu.sm_partition`.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app.errors import InstanceError

if TYPE_CHECKING:
    from app.config import Settings


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


@dataclass(frozen=True, slots=True)
class Cores:
    """Some of a machine's cores; bound threads stay there, and so do those that they start."""

    places: tuple[int, ...]
    unit: str = "cores"

    def enter(self) -> None:
        """Bind the calling thread to these cores."""
        if self.places != cores():
            os.sched_setaffinity(0, self.places)


class Threaded(Protocol):
    """A model whose threads can be another number of from one pass to the next."""

    def work_with(self, threads: int) -> None:
        """Run on so many threads from the next pass on, where the calling thread may run."""
        ...


@dataclass(frozen=True, slots=True)
class ModelCores:
    """Some of a machine's cores, and the models that run there: each has a thread for each core at most."""

    cores: Cores
    models: tuple[Threaded, ...]
    unit: str = "cores"

    @property
    def places(self) -> tuple[int, ...]:
        """Return the numbers of the cores."""
        return self.cores.places

    def enter(self) -> None:
        """Bind the calling thread to these cores, and let it call the models' threads there."""
        self.cores.enter()
        for model in self.models:
            model.work_with(len(self.cores.places))


def partition(settings: "Settings") -> Partition:
    """Give `settings.partition` of this process's cores to drafting, the others to the verifier.

    0 gives all to both, and so does auto at first. Raises InstanceError where that leaves the
    verifier none, or the system cannot bind threads to cores.
    """
    count, everything = units_of(settings), cores()
    if count == 0:
        return Partition(Cores(everything), Cores(everything))
    if not hasattr(os, "sched_setaffinity"):
        raise InstanceError("PACELINE_PARTITION needs a system that binds threads to cores (Linux)")
    if count >= len(everything):
        raise InstanceError(f"PACELINE_PARTITION={count} leaves the verifier none of {len(everything)} cores")
    return Partition(Cores(everything[:-count]), Cores(everything[-count:]))


def units_of(settings: "Settings") -> int:
    """Return the units kept for drafting from the start on."""
    return 0 if settings.plan.partition == "auto" else settings.plan.partition


def cores() -> tuple[int, ...]:
    """Return the cores that the calling thread may run on, rising."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def divisions(everything: tuple[int, ...]) -> dict[int, tuple[Cores, Cores]]:
    """Return the ways to divide these cores: the verifier's and the drafters', by how many the latter have.

    All for both, and a quarter or a half for drafting. Raises InstanceError where there is one core, or
    the system cannot bind threads to cores.
    """
    if not hasattr(os, "sched_setaffinity") or len(everything) < 2:
        raise InstanceError("PACELINE_PARTITION=auto needs two cores, and a system that binds threads to them (Linux)")
    parts = sorted({max(1, len(everything) // 4), len(everything) // 2})
    apart = {count: (Cores(everything[:-count]), Cores(everything[-count:])) for count in parts}
    return {0: (Cores(everything), Cores(everything)), **apart}


def within(settings: "Settings", sides: Partition) -> "Settings":
    """Return the settings with no more threads on a side than it has cores."""

    def most(threads: int, side: Side) -> int:
        return min(threads, len(side.places)) if side.unit == "cores" else threads

    return settings.model_copy(
        update={
            "verify_threads": most(settings.verify_threads, sides.verify),
            "draft_threads": most(settings.draft_threads, sides.draft),
        }
    )
