"""Run Celery's scheduler, in memory (its usual file is a pickle), with a heartbeat."""

from typing import Any

from celery.beat import Scheduler

from workers.deployment import Deployment
from workers.heartbeat import Heartbeat


def run_beat(deployment: Deployment, node: str) -> None:
    heartbeat = Heartbeat(deployment, "beat", node)
    heartbeat.begin()
    try:
        deployment.celery.Beat(
            scheduler_cls=_ticking(heartbeat),
            schedule=None,
            max_interval=1,
            loglevel=deployment.settings.log_level,
            quiet=True,
        ).run()
    finally:
        heartbeat.end()


def _ticking(heartbeat: Heartbeat) -> type[Scheduler]:
    class Ticking(Scheduler):
        def tick(self, *args: Any, **kwargs: Any) -> Any:
            heartbeat.begin_work()  # with each tick; without ticks there is no progress
            heartbeat.mark_idle()  # it mostly sleeps
            return super().tick(*args, **kwargs)

    return Ticking
