"""Run a worker of `bench scale`: `python -m bench.scale.worker ABOUT ROLE --node NAME`, as `workers.run` would.

The verifier's target and one drafter are the stand-ins, which ABOUT describes as JSON; the parts of the
process are measured and written to a file four times a second.
"""

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from bench.scale.parts import Parts

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
    """Put the stand-ins in place and the parts under measurement, then run the worker."""
    from app.assembly import verifier as assembly
    from app.config import Settings
    from app.engine.step_costs import StepCosts
    from app.engine.text.tokenizer import Tokenizer
    from app.stages.draft import registry
    from bench.scale.parts import Parts, write
    from bench.scale.stand_in import StandInDrafter, StandInTarget
    from workers.run import main as run

    given, role = StandIn.loads(argv[0]), argv[1]
    parts = Parts()
    targets: list[StandInTarget] = []

    def load(settings: Settings, tokenizer: Tokenizer) -> tuple[StandInTarget, StepCosts, Tokenizer]:
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
            values = {"at_s": time.monotonic(), "cpu_s": cpu_s, "seconds": parts.seconds, "calls": parts.calls}
            write(path, values | {"steps": steps, "exposed_s": exposed_s[-2000:]})

    replaced = {
        "load_target": load,
        "target_folder": lambda settings: Path(settings.home),
        "target_id": lambda *about: "stand-in",
    }
    vars(assembly).update(replaced)
    registry.BUILT_IN["lookup"] = lambda: StandInDrafter(given.rate)
    measure(parts)
    threading.Thread(target=record, daemon=True).start()
    return run(argv[1:])


def measure(parts: "Parts") -> None:
    """Wrap the functions of a round, by part."""
    import redis.connection

    from app.fuser.fuser import Fuser
    from app.speculation.jobs import DraftDispatcher
    from app.speculation.speculation import Speculation
    from app.store.mailbox import Mailboxes
    from app.verifier import verifier
    from app.verifier.pending_commit import PendingCommit
    from bench.scale.stand_in import StandInTarget
    from workers import mailbox_consumer
    from workers.deployment import Deployment
    from workers.roles import verify

    parts.wrap("fill", StandInTarget, "launch")
    parts.wrap("step", sys.modules["time"], "sleep")
    parts.wrap("schedule", verifier.Verifier, "_compose")
    parts.wrap("verify", verifier, "verify")
    parts.wrap("commit", verifier.Verifier, "commit", "_settle")
    parts.wrap("accept", verifier.Verifier, "_accept")
    parts.wrap("send", PendingCommit, "send")
    parts.wrap("settle", PendingCommit, "settle")
    parts.wrap("learn", Speculation, "record_verdicts", "receive")
    parts.wrap("ask", Speculation, "request_drafts")
    parts.wrap("jobs", DraftDispatcher, "jobs")
    parts.wrap("mail in", mailbox_consumer, "_read")
    parts.wrap("take", Mailboxes, "take")
    parts.wrap("mail out", Deployment, "post_all")
    parts.wrap("fuse", Fuser, "expect", "collect")
    parts.wrap("loop", verify.VerifierLoop, "handle")
    parts.wrap("trips", redis.connection.AbstractConnection, "send_packed_command")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
