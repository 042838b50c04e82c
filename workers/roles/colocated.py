"""Run verifier and drafters in one process, on the same part of the machine or each on its own (design D8).

The two segments and mailboxes are the same as in two processes: the verifier's in the main thread, the drafters' in a
thread of their own. That saves the memory and the start of one process.
"""

import logging
import sys
import threading
import time
from dataclasses import asdict
from typing import cast

from celery.worker import state as worker_state

from app.assembly.devices import sides_of
from app.assembly.drafter import build_drafters
from app.drafter.model import ModelDrafter
from app.engine.profile.profiler import ProfiledTarget, a_step
from app.messages import mailbox_of
from app.placement.interference import measure_interference
from app.placement.partition import Partition, within
from app.request import Sampling
from app.stages.draft.protocol import Context
from workers.deployment import Deployment
from workers.roles import draft, verify
from workers.service import RoleService

log = logging.getLogger(__name__)
SWITCH_S = 0.0005  # Python's threads take turns this often, or one side's step would wait for the other's bookkeeping
SHORT_S = 0.1  # serving that ended sooner was refused, and is not tried again at once
PROBE_ROWS = 8
PROBE_TOKENS = 32


def serve(deployment: Deployment, node: str) -> RoleService:
    """Load both sides, measure how much they slow each other down, and serve the verifier's mailbox."""
    sys.setswitchinterval(SWITCH_S)
    sides = sides_of(deployment.settings)
    deployment = Deployment(within(deployment.settings, sides), deployment.celery, deployment.tokenizer)
    drafters = DrafterThread(deployment, f"{node}-draft", sides)
    drafters.load()
    sides.verify.enter()
    verifier = verify.load(deployment, node)
    runner = cast(ProfiledTarget, verifier.target)
    with a_step(runner, deployment.tokenizer.vocab_size, PROBE_ROWS) as step:
        seen = measure_interference(step, drafters.guess, sides)
    about = {**sides.about(), **asdict(seen)}
    log.info("%d %s verify, %d draft; %s", len(sides.verify.places), sides.verify.unit, len(sides.draft.places), seen)
    service = verify.serve(deployment, node, verifier, {"partition": about})
    drafters.go()
    # The drafters' mailbox is always attended.
    doorbells = {**service.doorbells, drafters.mailbox: lambda: None}
    return RoleService(service.heartbeat, doorbells, service.tasks, drafters)


class DrafterThread(threading.Thread):
    """The drafters' side: a thread that loads them and serves their mailbox until the process ends."""

    def __init__(self, deployment: Deployment, node: str, sides: Partition) -> None:
        super().__init__(name="drafting", daemon=True)
        self.mailbox = mailbox_of("draft", node)
        self._deployment, self._node, self._sides = deployment, node, sides
        self._models: list[ModelDrafter] = []
        self._error: Exception | None = None
        self._loaded, self._may_go = threading.Event(), threading.Event()

    def load(self) -> None:
        """Start the thread, and wait until it has loaded the drafters. Raises ModelRefused."""
        self.start()
        self._loaded.wait()
        if self._error is not None:
            raise self._error

    def go(self) -> None:
        """Let the thread begin to serve."""
        self._may_go.set()

    def guess(self) -> None:
        """Draft once for no request, to load the machine as drafting does."""
        tokens = [*range(1, PROBE_TOKENS + 1)]
        for model in self._models:
            model.draft([Context("probe", "probe", tokens, PROBE_TOKENS, 4, Sampling(), None)])
            model.remove("probe")

    def run(self) -> None:
        try:
            self._sides.draft.enter()
            self._models = build_drafters(self._deployment.settings)
            service = draft.serve(self._deployment, self._node, self._models, is_apart=self._sides.is_real)
        except Exception as error:  # raised again by `load`
            self._error = error
            return
        finally:
            self._loaded.set()
        self._may_go.wait()
        service.begin()
        try:
            while worker_state.should_stop is None:
                began_s = time.monotonic()
                service.ring(self.mailbox)
                if time.monotonic() - began_s < SHORT_S:
                    time.sleep(SHORT_S)
        finally:
            service.end()
