"""The beat process: Celery's scheduler, in memory (its usual file is a pickle), with a pulse of its own."""

from celery.beat import Scheduler

from workers.office import Office
from workers.pulse import Pulse


def run_beat(office: Office, node: str) -> None:
    """Send the scheduler's ticks until told to stop."""
    pulse = Pulse(office, "beat", node)
    pulse.begin()
    try:
        office.celery.Beat(
            scheduler_cls=Scheduler,
            schedule=None,
            max_interval=1,
            loglevel=office.settings.log_level,
            quiet=True,
        ).run()
    finally:
        pulse.end()
