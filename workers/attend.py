"""Stay at a mailbox: what a rung doorbell does (design D4).

Everything that waits is one batch; then the worker lingers, since more is likely to come soon, and leaves only by a
script that checks that nothing was put in meanwhile. A doorbell that finds a live attendant returns at once.
"""

import time
from collections.abc import Callable

from celery.worker import state as worker_state

from workers.office import Office
from workers.pulse import Pulse

MAX_ITEMS = 256
LONGEST_WAIT_S = 0.5
Handle = Callable[[list[str]], float | None]


def attend(office: Office, pulse: Pulse, mailbox: str, handle: Handle) -> None:
    """Serve the mailbox until it is idle, for at most `attend_s`; then ring again, so that Celery gets its turn.

    `handle` gets all items that wait (perhaps none) and says how long it can do without more: 0 for work at hand,
    None for nothing to do.
    """
    if not office.mailboxes.attend(mailbox, pulse.owner):
        return
    pulse.hold(mailbox)
    try:
        _serve(office, pulse, mailbox, handle)
    finally:
        pulse.let_go(mailbox)


def _serve(office: Office, pulse: Pulse, mailbox: str, handle: Handle) -> None:
    until_s = time.monotonic() + office.settings.attend_s
    wait_s: float | None = 0.0
    idle_since_s: float | None = None
    while True:
        patience_s = office.settings.linger_s if wait_s is None else min(wait_s, LONGEST_WAIT_S)
        items = office.mailboxes.take(mailbox, pulse.owner, MAX_ITEMS, patience_s)
        pulse.busy(True)
        wait_s = handle(items)
        pulse.busy(False)
        now = time.monotonic()
        if items or wait_s is not None:
            idle_since_s = None
        elif idle_since_s is None:
            idle_since_s = now
        if now >= until_s or worker_state.should_stop is not None:
            return _hand_over(office, pulse, mailbox, has_work=wait_s is not None)
        if idle_since_s is not None and now - idle_since_s >= office.settings.linger_s:
            if office.mailboxes.leave(mailbox, pulse.owner) or not office.mailboxes.renew(mailbox, pulse.owner):
                return


def _hand_over(office: Office, pulse: Pulse, mailbox: str, *, has_work: bool) -> None:
    """Give the mailbox to the next ring; work at hand is reason to ring, items or not."""
    if office.mailboxes.release(mailbox, pulse.owner) or has_work:
        office.ring(mailbox)
