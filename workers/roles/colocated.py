"""Run verifier and drafters in two threads of one process, on shared or separate cores (design D8)."""

import logging
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import cast

from celery.worker import state as worker_state

from app.assembly.devices import AnyRunner, core_splits, sides_of
from app.assembly.drafter import AnyGuesser, drafters_over, load_guessers
from app.drafter.model import ModelDrafter
from app.engine.cpu.forward import Forward
from app.engine.drafters.guesser import ModelGuesser
from app.engine.profile.profiler import ProfiledTarget, a_step
from app.errors import InstanceError
from app.messages import mailbox_of
from app.placement.interference import measure_interference
from app.placement.partition import Partition, within
from app.placement.splits import PreparedSplits
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.verifier.verifier import Verifier
from workers.deployment import Deployment
from workers.roles import draft, verify
from workers.service import RoleService

log = logging.getLogger(__name__)
SWITCH_S = 0.0005  # Python's threads switch this often: a side's step must not wait for the other's bookkeeping
SHORT_S = 0.1  # serving that ended sooner was refused, and is not tried again at once
PROBE_ROWS = 8
PROBE_TOKENS = 32


def serve(deployment: Deployment, node: str) -> RoleService:
    """`partition = "auto"` prepares and measures several divisions of the cores."""
    sys.setswitchinterval(SWITCH_S)
    sides = sides_of(deployment.settings)
    deployment = Deployment(within(deployment.settings, sides), deployment.celery, deployment.tokenizer)
    drafters = DrafterThread(deployment, f"{node}-draft", sides)
    drafters.load()
    sides.verify.enter()
    about: dict[str, object] = {**sides.about()}
    if deployment.settings.plan.partition == "auto":
        prepared: list[PreparedSplits] = []

        def prepare(runner: AnyRunner) -> PreparedSplits:
            prepared.append(core_splits(runner, drafters.forwards))
            return prepared[0]

        verifier = verify.load(deployment, node, prepare)
        (splits,) = prepared
        about = _measure_splits(verifier, drafters, splits, deployment.tokenizer.vocab_size)
        drafters.follow(splits)
    else:
        verifier = verify.load(deployment, node)
    log.info("%d %s verify, %d draft; %s", len(sides.verify.places), sides.verify.unit, len(sides.draft.places), about)
    service = verify.serve(deployment, node, verifier, {"partition": about})
    drafters.go()
    # The drafters' mailbox is always attended.
    doorbells = {**service.doorbells, drafters.mailbox: lambda: None}
    return RoleService(service.heartbeat, doorbells, service.tasks, drafters)


def _measure_splits(
    verifier: Verifier, drafters: "DrafterThread", splits: PreparedSplits, vocab_size: int
) -> dict[str, object]:
    """Measure the slowdown of both sides at once under each split, over each alone on all cores.

    Also prepares each split's threads. Returns places and slowdowns by split, for status.
    """
    whole, about = splits.divisions[0], dict[str, object]()
    for number, split in enumerate(splits.all):
        if split.at_once:
            sides = splits.divisions[number]
            with a_step(cast(ProfiledTarget, verifier.target), vocab_size, PROBE_ROWS) as step:
                seen = measure_interference(step, drafters.guess, sides, whole)
            verifier.speculation.expect(number, seen)
            about[str(split.units)] = {**sides.about(), **asdict(seen)}
    whole.verify.enter()
    return about


class DrafterThread(threading.Thread):
    def __init__(self, deployment: Deployment, node: str, sides: Partition) -> None:
        super().__init__(name="drafting", daemon=True)
        self.mailbox = mailbox_of("draft", node)
        self._deployment, self._node, self._sides = deployment, node, sides
        self._guessers: Mapping[str, AnyGuesser] = {}
        self._models: list[ModelDrafter] = []
        self._splits: PreparedSplits | None = None
        self._error: Exception | None = None
        self._loaded, self._may_go = threading.Event(), threading.Event()

    def load(self) -> None:
        """Start the thread, and wait for the drafters. Raises ModelRefused."""
        self.start()
        self._loaded.wait()
        if self._error is not None:
            raise self._error

    @property
    def forwards(self) -> list[Forward]:
        """Raises InstanceError for a model on a GPU."""
        if not all(isinstance(guesser, ModelGuesser) for guesser in self._guessers.values()):
            raise InstanceError('a plan of partition = "auto" divides CPU cores, but the drafters are on a GPU')
        return [guesser.model for guesser in self._guessers.values() if isinstance(guesser, ModelGuesser)]

    def follow(self, splits: PreparedSplits) -> None:
        """Use the cores of the present split. Call it before `go`."""
        self._splits = splits

    def go(self) -> None:
        self._may_go.set()

    def guess(self) -> None:
        tokens = [*range(1, PROBE_TOKENS + 1)]
        for model in self._models:
            model.draft([Context("probe", "probe", tokens, PROBE_TOKENS, 4, Sampling(), state=None)])
            model.remove("probe")

    def _follow(self) -> None:
        if self._splits is not None:
            self._splits.follow()

    def run(self) -> None:
        try:
            self._sides.draft.enter()
            self._guessers = load_guessers(self._deployment.settings)
            self._models = drafters_over(self._guessers)
            service = draft.serve(
                self._deployment, self._node, self._models, is_apart=self._sides.is_real, follow=self._follow
            )
        except Exception as error:  # raised again by `load`
            self._error = error
            return
        finally:
            self._loaded.set()
        self._may_go.wait()
        if self._splits is not None:
            self._splits.divisions[0].draft.enter()
        service.begin()
        try:
            while worker_state.should_stop is None:
                began_s = time.monotonic()
                service.ring(self.mailbox)
                if time.monotonic() - began_s < SHORT_S:
                    time.sleep(SHORT_S)
        finally:
            service.end()
