"""Consume a mailbox after its doorbell (design D4): all waiting mail is one batch for the handler.

The worker leaves by a script that checks for new mail. A malformed item, or a batch on which the handler fails, is
dropped and logged: mail is a hint (design D10).
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import TypeVar

from celery.worker import state as worker_state

from app.errors import MessageError, StoreUnavailable
from app.messages import Mail
from app.metrics import QUEUE_WAIT
from app.store.connect import SentRuns
from app.store.mailbox import taken
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat

log = logging.getLogger(__name__)
MAX_ITEMS = 256
LOOK_S = 0.1  # longest time between two looks for mail
LONGEST_WAIT_S = 0.5
LINGER_S = 2.0  # that an idle worker waits for mail before it leaves
ATTEND_S = 20.0  # longest stay at a mailbox
M = TypeVar("M", bound=Mail)
Handle = Callable[[list[M]], float | None]


def consume_mailbox(
    deployment: Deployment,
    heartbeat: Heartbeat,
    mailbox: str,
    kind: type[M],
    handle: Handle[M],
    has_mail: Callable[[], bool] | None = None,
) -> None:
    """Serve the mailbox until it is idle, for at most ATTEND_S; then ring again, so that Celery gets its turn.

    `handle` gets all waiting messages (perhaps none) and returns the seconds it can wait for more: 0 while it has work
    left, None if it has none. Between two calls without a wait, mail is read if `has_mail` returns True; where that is
    not known it is looked for during the calls, which may be shorter than the way to Redis and back.
    """

    def handle_items(items: list[str]) -> float | None:
        messages = _read(kind, items)
        _observe_waits(deployment, mailbox, messages)
        return _handle(heartbeat, mailbox, handle, messages)

    if not heartbeat.attend(mailbox):
        return  # another thread of this process attends it; one is enough
    try:
        if deployment.mailboxes.attend(mailbox, heartbeat.owner):
            _serve(deployment, heartbeat, mailbox, handle_items, has_mail)
    except StoreUnavailable as error:
        log.warning("stopped serving %s: %s", mailbox, error)
    finally:
        heartbeat.stop_attending(mailbox)


def _serve(
    deployment: Deployment,
    heartbeat: Heartbeat,
    mailbox: str,
    handle: Callable[[list[str]], float | None],
    has_mail: Callable[[], bool] | None,
) -> None:
    until_s = time.monotonic() + ATTEND_S
    wait_s: float | None = 0.0
    idle_since_s: float | None = None
    seen_s, looked_s = time.monotonic(), -inf
    look: SentRuns | None = None  # under way
    try:
        while True:
            items: list[str] = []
            patience_s = min(LINGER_S if wait_s is None else wait_s, LONGEST_WAIT_S)
            if look is not None or (patience_s == 0.0 and has_mail is None and looked_s > 0.0):
                look = look or deployment.mailboxes.look(mailbox, heartbeat.owner, MAX_ITEMS, LOOK_S)
                if look.is_ready(patience_s):
                    items, look = taken(look), None
            elif patience_s > 0.0 or seen_s - looked_s >= LOOK_S or (has_mail is not None and has_mail()):
                items = deployment.mailboxes.take(mailbox, heartbeat.owner, MAX_ITEMS, patience_s)
                looked_s = time.monotonic()
            wait_s = handle(items)
            now = time.monotonic()
            # After so long a freeze or outage the lease may have expired; without it nothing may be taken.
            lease_may_be_lost = now - seen_s > deployment.settings.lease_s / 2
            if lease_may_be_lost and not deployment.mailboxes.attend(mailbox, heartbeat.owner):
                return
            seen_s = now
            if items or wait_s is not None or look is not None:
                idle_since_s = None
            elif idle_since_s is None:
                idle_since_s = now
            if now >= until_s or worker_state.should_stop is not None:
                return _hand_over(deployment, heartbeat, mailbox, has_work=wait_s is not None)
            is_idle = idle_since_s is not None and now - idle_since_s >= LINGER_S
            if is_idle and _try_leave(deployment, heartbeat, mailbox):
                return
    finally:
        if look is not None:
            with suppress(StoreUnavailable):  # what it took is in no mailbox any more
                if handle(taken(look)) is not None:
                    deployment.ring(mailbox)


def _try_leave(deployment: Deployment, heartbeat: Heartbeat, mailbox: str) -> bool:
    """Leave unless an item waits; True, too, if another process has the mailbox."""
    return deployment.mailboxes.leave(mailbox, heartbeat.owner) or not deployment.mailboxes.renew(
        mailbox, heartbeat.owner
    )


def _read(kind: type[M], items: list[str]) -> list[M]:
    messages = []
    for item in items:
        try:
            messages.append(kind.read(item))
        except MessageError as error:
            log.warning("dropped an item: %s", error)
    return messages


def _observe_waits(deployment: Deployment, mailbox: str, messages: Sequence[Mail]) -> None:
    stage, now_s = mailbox.partition(":")[0], time.time()
    for message in messages:
        if message.sent_s:
            deployment.counters.observe(QUEUE_WAIT, max(0.0, now_s - message.sent_s), stage)


def _handle(heartbeat: Heartbeat, mailbox: str, handle: Handle[M], messages: list[M]) -> float | None:
    heartbeat.begin_work()
    try:
        return handle(messages)
    except StoreUnavailable as error:
        log.warning("%s: %d messages were not handled: %s", mailbox, len(messages), error)
    except Exception:  # the next batches must still be served
        log.exception("%s: dropped %d messages", mailbox, len(messages))
    finally:
        heartbeat.end_work()
    return LONGEST_WAIT_S


def _hand_over(deployment: Deployment, heartbeat: Heartbeat, mailbox: str, *, has_work: bool) -> None:
    if deployment.mailboxes.release(mailbox, heartbeat.owner) or has_work:
        deployment.ring(mailbox)
