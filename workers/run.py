"""`python -m workers.run ROLE --node NAME`: one worker process of a deployment, until SIGTERM.

Roles: control, fuse, draft, verify, beat, and engine: a verifier and its drafters in one. Settings come from
PACELINE_*. How OpenMP's threads wait is put into the environment before torch is loaded.
"""

import argparse
import importlib
import logging
import os
import sys

from app import logs
from app.config import THREAD_ENVIRONMENT, Settings
from app.errors import PacelineError
from workers.beat import run_beat
from workers.celery_app import ATTEND, mailbox_queue, public_queues
from workers.discreet import hush
from workers.duty import Duty
from workers.office import Office
from workers.sharing import share

ROLES = ("control", "fuse", "draft", "verify", "engine", "beat")
CONTROL_THREADS = 4
log = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Serve one role; the exit status."""
    parser = argparse.ArgumentParser(prog="workers.run", description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--node", help="this worker's name (default: ROLE-1)")
    args = parser.parse_args(argv)
    for name, value in THREAD_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    node = args.node or f"{args.role}-1"
    try:
        settings = Settings.from_env()
        logs.configure(settings.model_copy(update={"node": node}))
        hush()
        serve(args.role, node, settings)
    except PacelineError as error:
        log.error("%s", error)
        return 1
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
