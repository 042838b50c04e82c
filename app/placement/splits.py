"""Name the splits of a machine between verifying and drafting, of which one is in use. No torch here.

A split says how many units (cores, multiprocessors) drafting has for itself, and whether both sides
work at once. Costs are learnt by split (`StepCosts.use`, `DraftCosts.use`), by its number.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol


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


def in_turn_and_at_once(in_turn: int, at_once: Iterable[int]) -> tuple[Split, ...]:
    """Return the splits: both sides in turn with `in_turn` units for drafting, then each of `at_once`."""
    return (Split(in_turn, False), *(Split(units, True) for units in at_once))
