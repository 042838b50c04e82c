"""Report the faults of `./paceline chaos`: which silence belongs to which, a table of all, and what was broken."""

from bisect import bisect_left
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

DRAIN_S = 120.0  # longest wait after a fault until every client has got something
ORDINARY_S = 1.0  # a silence up to this long before a fault may end with it
BAD = ("wrong", "failed", "lost")


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault, and its times in seconds."""

    at_s: float  # since the start
    fault: str
    lasted_s: float
    ready_s: float  # from its end until every process works
    moved_s: float  # from its end until every client has received something
    heard_s: float  # from its begin until silences are no longer its own
    longest_stall_s: float = 0.0  # the longest silence of a running stream that it began
    silences_s: tuple[float, ...] = ()  # the longest of each client's streams
    ended: dict[str, int] = field(default_factory=dict)  # requests until the next fault, by their end


def with_silences(injected: Listed[Injected], silences: Iterable[tuple[str, float, float]]) -> list[Injected]:
    """Give each silence (client, start, end), in seconds as `at_s`, to the fault that began it.

    A silence may outlast its fault and the next ones: a client of a half-open connection waits until
    its own time limit. It begins with the piece before, an ordinary silence ahead of its fault.
    """
    starts = [one.at_s - ORDINARY_S for one in injected]
    longest: list[dict[str, float]] = [{} for _ in injected]
    for client, begin_s, end_s in silences:
        i = bisect_left(starts, begin_s) - 1
        if i >= 0 and end_s > injected[i].at_s and begin_s < starts[i] + injected[i].heard_s:
            longest[i][client] = max(longest[i].get(client, 0.0), round(end_s - begin_s, 2))
    return [
        replace(one, longest_stall_s=max(own.values(), default=0.0), silences_s=(*sorted(own.values()),))
        for one, own in zip(injected, longest, strict=True)
    ]


def summary(faults: Listed[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each kind of fault."""
    rows = []
    for name in dict.fromkeys(one["fault"] for one in faults):
        own = [one for one in faults if one["fault"] == name]
        silences = [silence for one in own for silence in one["silences_s"]]
        rows.append(
            {
                "fault": name,
                "times": len(own),
                "longest, s": max(one["longest_stall_s"] for one in own),
                "median, s": round(median(silences), 2) if silences else None,
                **{end: sum(one["ended"][end] for one in own) for end in BAD},
            }
        )
    return rows


def table(rows: Listed[dict[str, Any]]) -> list[str]:
    """Return the rows as lines of Markdown."""
    cells = [[*rows[0]], ["---"] * len(rows[0]), *([*row.values()] for row in rows)] if rows else []
    return [f"| {' | '.join(map(_shown, row))} |" for row in cells]


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def broken(report: dict[str, Any]) -> list[str]:
    """List the promises that were not kept."""
    outcomes = report["requests"]
    stuck = [
        f"{one['fault']}: {DRAIN_S:.0f} s later some client had got nothing yet"
        for one in report["faults"]
        if one["moved_s"] - one["ready_s"] >= DRAIN_S - 1.0
    ]
    return [*(f"{end}: {one}" for end in BAD for one in outcomes[end]), *report["left behind"], *stuck]
