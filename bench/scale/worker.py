"""Run a worker of `bench scale`: `python -m bench.scale.worker ABOUT ROLE --node NAME`, as `workers.run` would.

The verifier's target and one drafter are the stand-ins, which ABOUT describes as JSON. What the process has spent is
written to a file four times a second.
"""

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

WRITE_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class StandIn:
    """What the workers of a measurement share."""

    folder: str  # of the files that they write
    step_s: float
    rate: float  # of the drafter's tokens that are right
    tokens: int  # the target has pages for
    longest: int  # tokens of a sequence

    @classmethod
    def loads(cls, text: str) -> Self:
        """Read what `dumps` wrote."""
        return cls(**json.loads(text))

    def dumps(self) -> str:
        """Write it for another process."""
        return json.dumps(asdict(self))


def main(argv: list[str]) -> int:
    """Put the stand-ins in place, count the trips to Redis, and run the worker."""
    from redis.connection import AbstractConnection

    from app.assembly import verifier as assembly
    from app.config import Settings
    from app.engine.step_costs import StepCosts
    from app.engine.text.tokenizer import Tokenizer
    from app.stages.draft import registry
    from app.system import write_whole
    from bench.scale.stand_in import StandInDrafter, StandInTarget
    from workers.deployment import load_tokenizer
    from workers.run import main as run

    given, role = StandIn.loads(argv[0]), argv[1]
    trips = 0
    send = AbstractConnection.send_packed_command

    def sent(connection: AbstractConnection, *about: Any, **rest: Any) -> None:
        nonlocal trips
        trips += threading.current_thread() is threading.main_thread()  # where a worker's rounds are
        send(connection, *about, **rest)

    targets: list[StandInTarget] = []

    def load(settings: Settings, loaded: assembly.Loaded, **_: object) -> tuple[StandInTarget, StepCosts, Tokenizer]:
        tokenizer = loaded.tokenizer
        target = StandInTarget(
            given.step_s,
            vocab_size=tokenizer.vocab_size,
            tokens=given.tokens,
            longest=given.longest,
        )
        targets.append(target)
        return target, StepCosts({1: given.step_s, 4096: given.step_s}), tokenizer

    def record() -> None:
        path = Path(given.folder) / f"{role}.json"
        while True:
            time.sleep(WRITE_EVERY_S)
            exposed_s = targets[0].exposed_s if targets else []
            steps = len(exposed_s)
            cpu_s = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)
            values = {"at_s": time.monotonic(), "cpu_s": cpu_s, "trips": trips, "steps": steps}
            write_whole(path, json.dumps(values | {"exposed_s": exposed_s[-2000:]}))

    replaced = {
        "load_target": load,
        "load_ahead": lambda settings, in_fork: assembly.Loaded(load_tokenizer(settings)),
        "target_folder": lambda settings: Path(settings.home),
        "target_id": lambda *about: "stand-in",
    }
    vars(assembly).update(replaced)
    registry.BUILT_IN["lookup"] = lambda: StandInDrafter(given.rate)
    AbstractConnection.send_packed_command = sent  # type: ignore[assignment, method-assign]
    threading.Thread(target=record, daemon=True).start()
    return run(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
