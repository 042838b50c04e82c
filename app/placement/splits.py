"""Name the splits of a machine between verifying and drafting, of which one is in use. No torch here.

A split says how many units (cores, multiprocessors) drafting has for itself, and whether both sides
work at once. Costs are learnt by split (`StepCosts.use`, `DraftCosts.use`), by its number.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from app.placement.partition import Partition


class Split(NamedTuple):
    """A way to divide a machine: the units kept for drafting (0: all are for both), and whether both sides work at
    once."""

    units: int
    at_once: bool


class Splits(Protocol):
    """The splits that were prepared, and the one in use. One thread writes: the verifier's, between steps."""

    @property
    def all(self) -> tuple[Split, ...]:
        """Return the splits by number; 0 is in use at first."""
        ...

    def use(self, number: int) -> None:
        """Divide the machine in this way from now on. Returns at once: all was prepared at the start."""
        ...


class FixedSplits:
    """One division of the machine, or none; both sides take turns on it or work at once."""

    def __init__(self, units: int = 0) -> None:
        """Keep `units` for drafting."""
        self.all = in_turn_and_at_once(units, [units])

    def use(self, number: int) -> None:
        """Change nothing: what is at once and what in turn follows from which drafts are asked for."""


class PreparedSplits:
    """Divisions of the machine of one process, all prepared at its start; each side enters the present one.

    The verifier's thread chooses, by `use`. The drafters' thread calls `follow` before it works.
    """

    def __init__(self, divisions: Mapping[int, Partition]) -> None:
        """Take these divisions, by the units that drafting has for itself: 0 first, where both have all."""
        self.all = in_turn_and_at_once(0, [units for units in divisions if units])
        self._divisions = [divisions[split.units] for split in self.all]
        self._present = self._followed = 0

    @property
    def divisions(self) -> Sequence[Partition]:
        """Return the division of each split, by its number."""
        return self._divisions

    def use(self, number: int) -> None:
        """Divide the machine in this way from now on. For the verifier's thread, between its steps."""
        if number != self._present:
            self._present = number
            self._divisions[number].verify.enter()

    def follow(self) -> None:
        """Work on the drafters' part of the present division from now on. For the drafters' thread, between rounds."""
        present = self._present
        if present != self._followed:
            self._followed = present
            self._divisions[present].draft.enter()


def in_turn_and_at_once(in_turn: int, at_once: Iterable[int]) -> tuple[Split, ...]:
    """Return the splits: both sides in turn with `in_turn` units for drafting, then each of `at_once`."""
    return (Split(in_turn, False), *(Split(units, True) for units in at_once))
