"""Which part of a machine verifies and which drafts, where one process does both (design D8). No torch here.

Cores are kept apart by the kernel's affinity masks: a thread that is bound, and those that it starts, run nowhere
else. Caches and memory stay shared; what that costs is measured (`app/placement/interference.py`), not assumed. A
GPU's multiprocessors are divided by `app.engine.gpu.sm_partition`.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app.errors import InstanceError

if TYPE_CHECKING:
    from app.config import Settings


class Side(Protocol):
    """What one of the two may use."""

    @property
    def unit(self) -> str:
        """What is divided."""
        ...

    @property
    def places(self) -> tuple[int, ...]:
        """The numbers of those that are this side's."""
        ...

    def enter(self) -> None:
        """What the calling thread does from now on is done there."""
        ...


class Partition(NamedTuple):
    """Both sides; with the very same places where nothing is kept apart."""

    verify: Side
    draft: Side

    @property
    def is_real(self) -> bool:
        """Does neither side take the other's places?"""
        return not set(self.verify.places) & set(self.draft.places)

    def about(self) -> dict[str, list[int]]:
        """For whoever asks how a process is divided."""
        sides = {"verify": self.verify, "draft": self.draft}
        return {f"{name}_{side.unit}": [*side.places] for name, side in sides.items()}


@dataclass(frozen=True, slots=True)
class Cores:
    """Some of a machine's; threads that are bound to them stay there, and so do those that they start."""

    places: tuple[int, ...]
    unit: str = "cores"

    def enter(self) -> None:
        if self.places != cores():
            os.sched_setaffinity(0, self.places)


def partition(settings: "Settings") -> Partition:
    """`settings.partition` of this process's cores for drafting, the others for the verifier; 0: all for both.

    Raises InstanceError where that leaves the verifier none, or the system cannot bind threads to cores.
    """
    count, everything = settings.partition, cores()
    if count == 0:
        return Partition(Cores(everything), Cores(everything))
    if not hasattr(os, "sched_setaffinity"):
        raise InstanceError("PACELINE_PARTITION needs a system that binds threads to cores (Linux)")
    if count >= len(everything):
        raise InstanceError(f"PACELINE_PARTITION={count} leaves the verifier none of {len(everything)} cores")
    return Partition(Cores(everything[:-count]), Cores(everything[-count:]))


def cores() -> tuple[int, ...]:
    """Those that the calling thread may run on, rising."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def within(settings: "Settings", sides: Partition) -> "Settings":
    """The settings with no more threads on a side than it has cores."""

    def most(threads: int, side: Side) -> int:
        return min(threads, len(side.places)) if side.unit == "cores" else threads

    return settings.model_copy(
        update={
            "verify_threads": most(settings.verify_threads, sides.verify),
            "draft_threads": most(settings.draft_threads, sides.draft),
        }
    )
