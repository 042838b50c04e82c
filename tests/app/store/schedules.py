"""The processes whose interleavings are explored: posters, attendants, verifiers, sweepers."""

from collections.abc import Callable, Generator
from typing import Any

from app.messages import FinishReason, Status
from app.store.protocol import Outcome
from tests.app.store.explore import Call, Explorer, Process
from tests.app.store.models import Mail, Req, mail_step, request_step

Steps = Generator[Call, Any, None]
LAST = 3  # tokens of the request when it is whole


def mail_system(step: Callable[[Any, Call], Any] = mail_step, *, second: Process | None = None) -> Explorer:
    processes: list[Process] = [
        lambda: poster("a"),
        lambda: poster("b"),
        lambda: attendant("h1", 2),
        second or (lambda: hasty_attendant("h2", 2)),
        sweeper,
    ]
    return Explorer(processes, Mail(), step, lambda mail: [("expire",)] if mail.attend else [])


def two_staying() -> Explorer:
    return mail_system(second=lambda: attendant("h2", 1))


def request_system(step: Callable[[Any, Call], Any] = request_step) -> Explorer:
    processes: list[Process] = [
        lambda: verifier("v1", 1),
        lambda: verifier("v2", 2),
        lambda: rescuer("v2"),
        canceller,
    ]
    return Explorer(processes, Req(), step, lambda req: [("die", owner) for owner in sorted(req.alive)])


def poster(item: str) -> Steps:
    if (yield ("post", item)):
        yield ("ring",)


def attendant(holder: str, answers: int) -> Steps:
    for _ in range(answers):
        yield ("answer",)
        if not (yield ("attend", holder)):
            continue
        is_staying = True
        while is_staying:
            if not (yield ("take", holder, 1)) and (yield ("leave", holder)):
                is_staying = False
            else:
                is_staying = yield ("renew", holder)


def hasty_attendant(holder: str, answers: int) -> Steps:
    """Take once and release, as after the longest stay."""
    for _ in range(answers):
        yield ("answer",)
        # Asked twice: a reply got lost, and the client library sent the call again.
        if (yield ("attend", holder)) and (yield ("attend", holder)):
            yield ("take", holder, 1)
            if (yield ("release", holder)):
                yield ("ring",)


def sweeper() -> Steps:
    if (yield ("forgotten",)):
        yield ("ring",)


def verifier(owner: str, tries: int) -> Steps:
    yield ("beat", owner)
    for _ in range(tries):
        if (yield ("assign", owner)):
            yield from _verify(owner)


def _verify(owner: str) -> Steps:
    status, length = yield ("snapshot",)
    while status == Status.ACTIVE and length < LAST:
        size = min(2, LAST - length)
        commit = ("commit", owner, length, size, FinishReason.STOP if length + size == LAST else None)
        outcome = yield commit
        yield commit  # the reply got lost, and the client library sends it again
        if outcome != Outcome.COMMITTED:
            return
        length += size


def rescuer(owner: str) -> Steps:
    if (yield ("orphans",)):
        yield ("assign", owner)


def canceller() -> Steps:
    yield ("end", FinishReason.CANCELLED)
