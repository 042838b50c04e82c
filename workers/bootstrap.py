"""Serve one role until SIGTERM: its service, the doorbell task, and a Celery worker."""

import gc
import importlib
import logging
from typing import TYPE_CHECKING

from app.config import Settings
from workers.celery_app import mailbox_queue, public_queues
from workers.deployment import Deployment
from workers.recovery import recover, succeed
from workers.roles.beat import run_beat
from workers.service import RoleService
from workers.tasks import doorbell
from workers.template import Life, Template, in_fork

if TYPE_CHECKING:
    from app.assembly.verifier import Loaded

CONTROL_THREADS = 4
WORKER_MODULES = ("celery.bin.worker", "celery.apps.worker", "celery.worker.consumer", "celery.concurrency.solo")
MODULES = {"engine": "colocated"}  # of the roles whose module has another name
GC_OBJECTS = 20_000  # objects made and not freed between two collections; a round makes thousands and frees nearly all
log = logging.getLogger(__name__)


def serve(role: str, node: str, settings: Settings) -> int:
    """Return the process's exit status. A verifier is forked from a template where its target can be."""
    if role == "verify":
        from app.assembly.verifier import load_ahead  # torch, as below

        loaded = load_ahead(settings, in_fork)
        for name in (*WORKER_MODULES, "workers.roles.verify"):
            importlib.import_module(name)
        return Template().run(lambda life: _serve_verifier(node, settings, loaded, life), forks=loaded.forks)
    deployment = Deployment.open(settings)
    if role == "beat":
        run_beat(deployment, node)
        return 0
    # Imports this role's module only: others load torch.
    module = importlib.import_module(f"workers.roles.{MODULES.get(role, role)}")
    service: RoleService = module.serve(deployment, node)
    service.begin()
    return run(role, node, deployment, service)


def _serve_verifier(node: str, settings: Settings, loaded: "Loaded", life: Life) -> int:
    from workers.roles import verify

    deployment = Deployment.open(settings, loaded.tokenizer)
    succeed(deployment, "verify", node, life.predecessor)
    verifier = verify.load(deployment, node, loaded=loaded, owner=life.owner)
    service = verify.serve(deployment, node, verifier)
    service.begin()
    if life.predecessor:
        recover(deployment)  # what no other verifier took
    return run("verify", node, deployment, service)


def run(role: str, node: str, deployment: Deployment, service: RoleService) -> int:
    """Run a service that has begun as a Celery worker, to its end; return the process's exit status."""
    settings = deployment.settings
    doorbell.register(deployment.celery, service)
    gc.collect()
    gc.freeze()  # a full collection over all loaded objects would stop requests for tenths of a second
    gc.set_threshold(GC_OBJECTS)
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
    return 0
