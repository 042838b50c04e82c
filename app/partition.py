"""Which of a machine's cores verify and which draft, where one process does both (design D8). No torch here.

Cores are kept apart by the kernel's affinity masks: a thread that is bound, and those that it starts, run nowhere else.
Caches and memory stay shared; what that costs is measured (`app/isolation.py`), not assumed.
"""

import os
from collections.abc import Set
from typing import NamedTuple

from app.config import Settings
from app.errors import InstanceError


class Partition(NamedTuple):
    """The cores of each side; the very same ones where nothing is kept apart."""

    verify: frozenset[int]
    draft: frozenset[int]

    @property
    def is_real(self) -> bool:
        """Does neither side take the other's cores?"""
        return not self.verify & self.draft


def partition(settings: Settings) -> Partition:
    """`settings.partition` of this process's cores for drafting, the others for the verifier; 0: all for both.

    Raises InstanceError where that leaves the verifier none, or the system cannot bind threads to cores.
    """
    count = settings.partition
    if count == 0:
        return Partition(cores(), cores())
    everything = sorted(cores())
    if not hasattr(os, "sched_setaffinity"):
        raise InstanceError("PACELINE_PARTITION needs a system that binds threads to cores (Linux)")
    if count >= len(everything):
        raise InstanceError(f"PACELINE_PARTITION={count} leaves the verifier none of {len(everything)} cores")
    return Partition(frozenset(everything[:-count]), frozenset(everything[-count:]))


def cores() -> frozenset[int]:
    """Those that the calling thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def bind(wanted: Set[int]) -> None:
    """From now on the calling thread, and threads that it starts, run on these cores only."""
    if frozenset(wanted) != cores():
        os.sched_setaffinity(0, wanted)


def within(settings: Settings, sides: Partition) -> Settings:
    """The settings with no more threads on a side than it has cores."""
    return settings.model_copy(
        update={
            "verify_threads": min(settings.verify_threads, len(sides.verify)),
            "draft_threads": min(settings.draft_threads, len(sides.draft)),
        }
    )
