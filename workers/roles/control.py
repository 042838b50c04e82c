"""Run control: admit requests of Celery tasks, settle their results, run ticks, watch Redis' append-only file."""

from app.messages import SETTLE, Settle
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat
from workers.mailbox_consumer import consume_mailbox
from workers.service import RoleService
from workers.tasks import generate, steer
from workers.tasks.progress import TaskProgress
from workers.tasks.results import TaskResults
from workers.tasks.settle import ResultSettler
from workers.tasks.waiting_tasks import WaitingTasks


def serve(deployment: Deployment, node: str) -> RoleService:
    heartbeat = Heartbeat(deployment, "control", node)
    results = TaskResults(deployment.celery)
    settler, waiting_tasks = ResultSettler(deployment, results), WaitingTasks(deployment, results)
    progress, exchange = TaskProgress(deployment), deployment.exchange_stats(deployment.counters)
    deliveries = deployment.deliveries
    generate.register(deployment.celery, deployment.settings, waiting_tasks, progress, deliveries, heartbeat.owner)
    steer.register(deployment.celery, deployment)

    def handle(messages: list[Settle]) -> None:
        for message in messages:
            settler.settle(message.request_id)

    doorbells = {SETTLE: lambda: consume_mailbox(deployment, heartbeat, SETTLE, Settle, handle)}
    return RoleService(heartbeat, doorbells, [settler, waiting_tasks, progress, exchange, deployment.append_only_file])
