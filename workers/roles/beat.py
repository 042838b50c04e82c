"""The beat process: Celery's scheduler, in memory (its usual file is a pickle), with a pulse of its own."""

from typing import Any

from celery.beat import Scheduler

from workers.deployment import Office
from workers.heartbeat import Pulse


def run_beat(office: Office, node: str) -> None:
    """Send the scheduler's ticks until told to stop."""
    pulse = Pulse(office, "beat", node)
    pulse.begin()
    try:
        office.celery.Beat(
            scheduler_cls=_ticking(pulse),
            schedule=None,
            max_interval=1,
            loglevel=office.settings.log_level,
            quiet=True,
        ).run()
    finally:
        pulse.end()


def _ticking(pulse: Pulse) -> type[Scheduler]:
    """A scheduler whose progress is its ticks: one that hangs is seen, and ended by the pulse."""

    class Ticking(Scheduler):
        def tick(self, *args: Any, **kwargs: Any) -> Any:
            pulse.busy(True)  # anew with each tick: at it for as long as there was none, so that a hang is seen
            pulse.need_not()  # yet it mostly sleeps: what it takes is no work
            return super().tick(*args, **kwargs)

    return Ticking
