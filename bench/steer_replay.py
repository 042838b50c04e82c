"""`./paceline bench steer LOG`: decide again what a recorded controller decided, and print where it would differ.

The control worker writes the log under PACELINE_STEER_LOG: a line for each tick with the load, the time, the policy
before and the one after. The exit status is 1 where any decision differs, and 2 where the log cannot be read.
"""

import sys
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from app.beat import steer
from bench.help import parser as parser_of
from workers.tasks.steer import Tick


@dataclass(frozen=True, slots=True)
class Replay:
    """Hold the result of replaying a log."""

    ticks: int
    switches: int  # ticks that changed what verifiers follow
    differing: tuple[int, ...]  # lines, from 1, on which this version decides otherwise
    seconds: float


def main(argv: Listed[str] | None = None) -> int:
    """Replay one log; return the exit status."""
    parser = parser_of("bench steer", __doc__)
    parser.add_argument("log", type=Path, help="as written under PACELINE_STEER_LOG")
    args = parser.parse_args(argv)
    try:
        found = replay(read(args.log))
    except (OSError, ValidationError) as error:
        print(f"{args.log}: {error}", file=sys.stderr)
        return 2
    print(f"{found.ticks} ticks in {found.seconds:.0f} s, {found.switches} switches, {len(found.differing)} differ")
    if found.differing:
        print("lines", *found.differing[:20])
    return 1 if found.differing else 0


def read(log: Path) -> list[Tick]:
    """Read the ticks of a log. Raises OSError, pydantic.ValidationError."""
    return [Tick.model_validate_json(line) for line in log.read_text(encoding="utf-8").splitlines()]


def replay(ticks: Listed[Tick]) -> Replay:
    """Decide each tick again from its recorded load and policy."""
    again = [steer(tick.load, tick.before) for tick in ticks]
    return Replay(
        ticks=len(ticks),
        switches=sum(tick.before.version != tick.after.version for tick in ticks),
        differing=tuple(
            i for i, (tick, one) in enumerate(zip(ticks, again, strict=True), start=1) if tick.after != one
        ),
        seconds=ticks[-1].now_s - ticks[0].now_s if ticks else 0.0,
    )


if __name__ == "__main__":
    sys.exit(main())
