"""Name the splits of a machine between verifying and drafting; FASER's controller uses one at a time.

Costs are learnt by the split's number.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from app.placement.partition import Partition


class Split(NamedTuple):
    """Units kept for drafting (0: all are for both), and whether both sides work at once."""

    units: int
    at_once: bool


class Splits(Protocol):
    """The prepared splits, and the one in use. Only the verifier's thread writes, between steps."""

    @property
    def all(self) -> tuple[Split, ...]:
        """By number; 0 is in use at first."""
        ...

    def use(self, number: int) -> None:
        """Divide the machine so; returns at once."""
        ...


class FixedSplits:
    def __init__(self, units: int = 0) -> None:
        self.all = in_turn_and_at_once(units, [units])

    def use(self, number: int) -> None:
        """Change nothing."""


class PreparedSplits:
    def __init__(self, divisions: Mapping[int, Partition]) -> None:
        """`divisions`: by the units that drafting has for itself, 0 first."""
        self.all = in_turn_and_at_once(0, [units for units in divisions if units])
        self.divisions = [divisions[split.units] for split in self.all]  # by the number of the split
        self._present = self._followed = 0

    def use(self, number: int) -> None:
        if number != self._present:
            self._present = number
            self.divisions[number].verify.enter()

    def follow(self) -> None:
        """Enter the drafters' part of the present division. For the drafters' thread, between rounds."""
        present = self._present
        if present != self._followed:
            self._followed = present
            self.divisions[present].draft.enter()


def in_turn_and_at_once(in_turn: int, at_once: Iterable[int]) -> tuple[Split, ...]:
    return (Split(in_turn, False), *(Split(units, True) for units in at_once))
