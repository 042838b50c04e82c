"""Run a verifier at a stated device's pace: `python -m lab.deployed.paced_verifier COSTS NODE [TEXTS]`.

The target computes, and the rest of the step that COSTS states is slept, which leaves the cores to others as a GPU
would. With TEXTS, a file of `lab.deployed.remembered`, nothing is computed. Its texts are the target's own.
"""

import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import Any, Final, cast

from app import logs
from app.assembly.devices import AnyRunner, target_runner
from app.assembly.verifier import Loaded
from app.config import Settings
from app.engine.step_costs import StepCosts
from app.engine.target import LaunchedStep, Target, TargetRows
from app.engine.weights.resolve import target_folder
from app.state import BatchEntry
from lab.deployed.remembered import TEXTS, RememberedTarget
from workers.bootstrap import run
from workers.deployment import Deployment
from workers.log_redaction import redact_celery_log
from workers.roles import verify

Finish = Callable[[float, float, float], None]  # a step's seconds: its own, with the sleep, and stated
LATE = 1.1  # of the stated time
MOST_LATE = 0.02  # of the steps, for figures that mean something


def main() -> int:
    """Serve until SIGTERM; return the exit status."""
    file, node, *texts = sys.argv[1:]
    settings = Settings.from_env()
    logs.configure(settings.model_copy(update={"node": node}))
    redact_celery_log()
    deployment = Deployment.open(settings)
    stated = StepCosts.loads(Path(file).read_text())
    target: Target
    if texts:
        target = RememberedTarget(TEXTS.validate_json(Path(*texts).read_bytes()))
    else:
        target = target_runner(target_folder(settings), settings, deployment.tokenizer.context_tokens)
    paced = PacedTarget(target, stated)
    loaded = Loaded(deployment.tokenizer, cast(AnyRunner, paced), costs=StepCosts.loads(stated.dumps()))
    verifier = verify.load(deployment, node, loaded=loaded)
    service = verify.serve(deployment, node, verifier, about={"paced": paced.figures})
    service.begin()
    return run("verify", node, deployment, service)


class PacedTarget:
    """A target whose steps take the stated time (`app.engine.target.Target`), or longer where they cannot."""

    def __init__(self, target: Target, stated: StepCosts) -> None:
        self._target, self._stated = target, stated
        self.figures: Final[dict[str, float]] = {"steps": 0, "late": 0, "own_s": 0.0}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def launch(self, works: list[BatchEntry]) -> LaunchedStep:
        rows = sum(len(work.tokens) + len(work.tree) for work in works)
        return PacedStep(self._target.launch(works), self._stated.seconds(rows), self._finish)

    def _finish(self, own_s: float, took_s: float, stated_s: float) -> None:
        self.figures["steps"] += 1
        self.figures["late"] += took_s > LATE * stated_s
        self.figures["own_s"] += own_s


class PacedStep:
    runs_beside: Final = False

    def __init__(self, step: LaunchedStep, stated_s: float, finish: Finish) -> None:
        self._step, self._stated_s, self._finish = step, stated_s, finish
        self.took_s = 0.0

    def collect(self) -> Listed[TargetRows | None]:
        began_s = time.perf_counter()
        rows = self._step.collect()
        own_s = time.perf_counter() - began_s
        time.sleep(max(0.0, self._stated_s - own_s))
        self.took_s = time.perf_counter() - began_s
        self._finish(own_s, self.took_s, self._stated_s)
        return rows


if __name__ == "__main__":
    sys.exit(main())
