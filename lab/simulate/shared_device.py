"""Let a target and its drafters share one simulated device, divided between them or used in turn.

Drafting has a share f of the compute and the target the rest. A side reads memory at full speed from `reads_with` of
the device on. Each side slows the other by 1 + kappa x the part of the last second in which it worked. Where nothing
is divided, a piece of work begins when the other side's has ended. The code that serves chooses the split.
"""

from collections import deque
from typing import Literal

from pydantic import BaseModel, ConfigDict

from app.placement.interference import Interference
from app.placement.splits import Split, in_turn_and_at_once

WINDOW_S = 1.0
Side = Literal["verify", "draft"]
OTHER: dict[Side, Side] = {"verify": "draft", "draft": "verify"}


class Sharing(BaseModel):
    """The stated numbers of a device that a target and its drafters share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    units: int  # multiprocessors
    splits: tuple[int, ...]  # units for drafting, of those prepared
    row_compute_s: float  # of the target, on all units; the rest of a step is reading
    token_compute_s: float  # of a drafter, for one sequence
    reads_with: float  # the part of the units that reads memory at full speed
    kappa: float = 0.2
    draft_token_s: dict[int, float]  # seconds of one more guess by sequences at once, on all units


class SharedDevice:
    """The device, and the split in use. Both sides report their work in order of time."""

    def __init__(self, sharing: Sharing, partition: int | Literal["auto"]) -> None:
        """Divide as the setting `partition` says: never, in one way, or by the prepared splits."""
        self.all: tuple[Split, ...] = (
            in_turn_and_at_once(0, sharing.splits)
            if partition == "auto"
            else in_turn_and_at_once(partition, [partition])
        )
        self.used_s: dict[Split, float] = dict.fromkeys(self.all, 0.0)  # seconds of verifying under each split
        self._sharing = sharing
        self._present = self.all[0]
        self._until_s: dict[Side, float] = {"verify": 0.0, "draft": 0.0}
        self._worked: dict[Side, deque[tuple[float, float]]] = {"verify": deque(), "draft": deque()}

    def use(self, number: int) -> None:
        """Divide the device in this way from the next piece of work on."""
        self._present = self.all[number]

    def interference(self, number: int, step_s: float) -> Interference:
        """Return what a probe at the start would measure: a step of one row and a guess, each beside the other."""
        sharing, units = self._sharing, self.all[number].units
        slowdown = 1.0 + sharing.kappa if units else 1.0
        drafting, verifying = units / sharing.units or 1.0, 1.0 - units / sharing.units
        verify_s = max(self._reading(verifying) * step_s, sharing.row_compute_s / verifying)
        return Interference(slowdown * verify_s / step_s, slowdown * self._reading(drafting))

    def verify(self, at_s: float, rows: float, seconds: float, reading_s: float) -> float:
        """Return the seconds from `at_s` until a step of so many rows has ended (`Device`)."""
        part = 1.0 - self._present.units / self._sharing.units
        alone_s = max(seconds * self._reading(part), rows * self._sharing.row_compute_s / part) + reading_s
        found = self._pass("verify", at_s, alone_s)
        self.used_s[self._present] += found
        return found

    def draft(self, at_s: float, tokens: int, seconds: float) -> float:
        """Return the seconds from `at_s` until a drafter has computed so many tokens (`Device`)."""
        part = self._present.units / self._sharing.units or 1.0
        alone_s = max(seconds * self._reading(part), tokens * self._sharing.token_compute_s / part)
        return self._pass("draft", at_s, alone_s)

    def _reading(self, part: float) -> float:
        return max(1.0, self._sharing.reads_with / part)

    def _pass(self, side: Side, at_s: float, alone_s: float) -> float:
        """Return how long a piece of work takes, waiting for the other side included where nothing is divided."""
        other = OTHER[side]
        begins_s, slowdown = at_s, 1.0
        if self._present.units:
            slowdown += self._sharing.kappa * self._use(other, at_s)
        else:
            begins_s = max(at_s, self._until_s[other])
        self._until_s[side] = begins_s + alone_s * slowdown
        self._worked[side].append((begins_s, self._until_s[side]))
        return self._until_s[side] - at_s

    def _use(self, side: Side, now_s: float) -> float:
        """Return the part of the last second in which a side worked."""
        worked, since_s = self._worked[side], now_s - WINDOW_S
        while worked and worked[0][1] <= since_s:
            worked.popleft()
        spans = ((max(begin, since_s), min(end, now_s)) for begin, end in worked)
        return min(1.0, sum(max(0.0, end - begin) for begin, end in spans) / WINDOW_S)
