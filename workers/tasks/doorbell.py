"""Register the Celery task `paceline.attend`, the doorbell of this worker's mailboxes."""

from celery import Celery

from workers.celery_app import ATTEND
from workers.service import RoleService


def register(celery: Celery, service: RoleService) -> None:
    @celery.task(name=ATTEND, ignore_result=True)
    def attend(mailbox: str) -> None:
        service.ring(mailbox)
