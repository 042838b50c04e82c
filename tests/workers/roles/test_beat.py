"""What the beat process says of itself."""

import time

from app.store.protocol import Node
from workers.deployment import Office
from workers.heartbeat import Pulse
from workers.roles.beat import _ticking


def test_a_beat_that_ticks_is_not_busy_and_one_that_hangs_makes_no_progress(lone_office: Office) -> None:
    pulse = Pulse(lone_office, "beat", "beat-1")
    pulse.begin()
    try:
        scheduler = _ticking(pulse)(app=lone_office.celery, lazy=True)
        for _ in range(10):
            scheduler.tick()
            time.sleep(0.1)
        ticked_s = time.time()
        ticking = seen(lone_office)
        assert ticking.info["busy"] < 0.1, "it sleeps between ticks"
        time.sleep(1.0)  # no tick: it hangs
        assert ticking.progress_s - 0.5 < seen(lone_office).progress_s < ticked_s + 0.1
    finally:
        pulse.end()


def seen(office: Office) -> Node:
    (node,) = office.nodes.live("beat")
    return node
