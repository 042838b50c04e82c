"""Name the splits of a machine between verifying and drafting, of which FASER's controller uses one at a time.

A split says how many units (cores, multiprocessors) drafting has for itself, and whether both sides work at once.
Costs are learnt by the number of the split (`StepCosts.use`, `DraftCosts.use`).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from app.placement.partition import Partition


class Split(NamedTuple):
    """The units kept for drafting (0: all are for both), and whether both sides work at once."""

    units: int
    at_once: bool


class Splits(Protocol):
    """The splits that were prepared, and the one in use. One thread writes: the verifier's, between steps."""

    @property
    def all(self) -> tuple[Split, ...]:
        """Return the splits by number; 0 is in use at first."""
        ...

    def use(self, number: int) -> None:
        """Divide the machine in this way from now on; returns at once."""
        ...


class FixedSplits:
    """One division of the machine, or none; both sides take turns on it or work at once."""

    def __init__(self, units: int = 0) -> None:
        """Keep `units` for drafting."""
        self.all = in_turn_and_at_once(units, [units])

    def use(self, number: int) -> None:
        """Change nothing: what is at once and what in turn follows from the drafts that are requested."""


class PreparedSplits:
    """Divisions of one process's machine, prepared at its start; each side enters the present one."""

    def __init__(self, divisions: Mapping[int, Partition]) -> None:
        """Take these divisions, by the units that drafting has for itself: 0 first, where both have all."""
        self.all = in_turn_and_at_once(0, [units for units in divisions if units])
        self.divisions = [divisions[split.units] for split in self.all]  # by the number of the split
        self._present = self._followed = 0

    def use(self, number: int) -> None:
        """Divide the machine in this way from now on. For the verifier's thread, between its steps."""
        if number != self._present:
            self._present = number
            self.divisions[number].verify.enter()

    def follow(self) -> None:
        """Work on the drafters' part of the present division from now on. For the drafters' thread, between rounds."""
        present = self._present
        if present != self._followed:
            self._followed = present
            self.divisions[present].draft.enter()


def in_turn_and_at_once(in_turn: int, at_once: Iterable[int]) -> tuple[Split, ...]:
    """Return the splits: both sides in turn with `in_turn` units for drafting, then each of `at_once`."""
    return (Split(in_turn, False), *(Split(units, True) for units in at_once))
