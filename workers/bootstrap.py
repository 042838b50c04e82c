"""Serve one role until SIGTERM: its service, the doorbell task, and a Celery worker."""

import gc
import importlib
import logging

from app.config import Settings
from workers.celery_app import mailbox_queue, public_queues
from workers.deployment import Deployment
from workers.roles.beat import run_beat
from workers.service import RoleService
from workers.tasks import doorbell

CONTROL_THREADS = 4
MODULES = {"engine": "colocated"}  # of the roles whose module has another name
GC_OBJECTS = 20_000  # objects made and not freed between two collections; a round makes thousands and frees nearly all
log = logging.getLogger(__name__)


def serve(role: str, node: str, settings: Settings) -> None:
    deployment = Deployment.open(settings)
    if role == "beat":
        run_beat(deployment, node)
        return
    # Imports this role's module only: others load torch.
    module = importlib.import_module(f"workers.roles.{MODULES.get(role, role)}")
    service: RoleService = module.serve(deployment, node)
    doorbell.register(deployment.celery, service)
    gc.collect()
    gc.freeze()  # a full collection over all loaded objects would stop requests for tenths of a second
    gc.set_threshold(GC_OBJECTS)
    service.begin()
    for mailbox in service.doorbells:  # for mail that came while no worker was there
        deployment.ring(mailbox)
    # mailboxes first: ticks and rings are quick
    wanted = [mailbox_queue(settings, mailbox) for mailbox in service.doorbells]
    wanted += public_queues(settings).values() if role == "control" else []
    pool = ["-P", "threads", "-c", str(CONTROL_THREADS)] if role == "control" else ["-P", "solo"]
    # task events are for monitors such as Flower; a doorbell sends three, and rings seldom
    options = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--task-events", "-l", settings.log_level]
    try:
        deployment.celery.worker_main(
            ["--quiet", "worker", "-n", f"{node}@%h", "-Q", ",".join(wanted), *pool, *options]
        )
    finally:
        log.info("leaving")
        service.end()
