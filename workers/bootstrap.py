"""Serve one role: its segment's tasks, its mailboxes' bells, a Celery worker around them, until SIGTERM."""

import importlib
import logging

from app.config import Settings
from workers.celery_app import ATTEND, mailbox_queue, public_queues
from workers.deployment import Office
from workers.roles.beat import run_beat
from workers.service import Duty
from workers.sharing_zz import share

CONTROL_THREADS = 4
log = logging.getLogger(__name__)


def serve(role: str, node: str, settings: Settings) -> None:
    """Open the office, let the role register its tasks, and work until told to stop."""
    office = Office.open(settings)
    if role == "beat":
        run_beat(office, node)
        return
    module = importlib.import_module(f"workers.roles.{role}")  # only its own role: the others load torch
    duty: Duty = module.serve(office, node)
    share(office, duty.pulse, office.tally)

    @office.celery.task(name=ATTEND, ignore_result=True)
    def rung(mailbox: str) -> None:
        duty.ring(mailbox)

    duty.pulse.begin()
    for mailbox in duty.bells:  # what came while nobody was there
        office.ring(mailbox)
    wanted = [mailbox_queue(settings, mailbox) for mailbox in duty.bells]  # these first: ticks and rings are quick
    wanted += public_queues(settings).values() if role == "control" else []
    pool = ["-P", "threads", "-c", str(CONTROL_THREADS)] if role == "control" else ["-P", "solo"]
    # task events are for monitors such as Flower; a doorbell sends three, and rings seldom
    options = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--task-events", "-l", settings.log_level]
    try:
        office.celery.worker_main(["--quiet", "worker", "-n", f"{node}@%h", "-Q", ",".join(wanted), *pool, *options])
    finally:
        log.info("leaving")
        duty.end()
