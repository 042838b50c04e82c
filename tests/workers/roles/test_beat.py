"""Test the progress that the beat process reports."""

import time

from app.store.protocol import Node
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat
from workers.roles.beat import _ticking


def test_a_ticking_beat_is_not_busy_and_a_hung_one_has_no_progress(lone_deployment: Deployment) -> None:
    heartbeat = Heartbeat(lone_deployment, "beat", "beat-1")
    heartbeat.begin()
    try:
        scheduler = _ticking(heartbeat)(app=lone_deployment.celery, lazy=True)
        for _ in range(10):
            scheduler.tick()
            time.sleep(0.1)
        ticked_s = time.time()
        ticking = seen(lone_deployment)
        assert ticking.info["busy"] < 0.1, "it sleeps between ticks"
        time.sleep(1.0)  # no tick: it hangs
        assert ticking.progress_s - 0.5 < seen(lone_deployment).progress_s < ticked_s + 0.1
    finally:
        heartbeat.end()


def seen(deployment: Deployment) -> Node:
    (node,) = deployment.nodes.live("beat")
    return node
