"""Register the Celery task `paceline.attend`, the doorbell of this worker's mailboxes."""

import logging

from celery import Celery

from workers.celery_app import ATTEND
from workers.service import RoleService

log = logging.getLogger(__name__)


def register(celery: Celery, service: RoleService) -> None:
    @celery.task(name=ATTEND, ignore_result=True)
    def attend(*args: object, **more: object) -> None:
        match args:
            case [str(mailbox)] if not more:
                service.ring(mailbox)
            case _:
                log.warning("dropped a doorbell that names no mailbox")
