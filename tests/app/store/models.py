"""Model the Lua scripts in plain Python: a state and a call give the next state and a reply.

The hand-off tests explore these models and hold the real scripts against every step of theirs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from app.messages import FinishReason, Status
from app.store.protocol import Outcome, final_status
from tests.app.store.explore import Call

RINGING = "ringing"


class Mail(NamedTuple):
    """One mailbox; and, in no key of Redis, the doorbells in Celery's queue and the items taken."""

    items: tuple[str, ...] = ()
    attend: str = ""
    is_listed: bool = False
    doorbells: int = 0
    taken: tuple[str, ...] = ()


def mail_step(mail: Mail, call: Call) -> tuple[Mail, Any] | None:
    """Apply one call; None while it would block."""
    name, *args = call
    if name == "answer":  # a worker gets a doorbell
        return (mail._replace(doorbells=mail.doorbells - 1), True) if mail.doorbells else None
    if name == "ring":
        return mail._replace(doorbells=mail.doorbells + 1), None
    if name == "expire":
        return mail._replace(attend=""), None
    result: tuple[Mail, Any] = _MAIL[name](mail, *args)
    return result


def _post(mail: Mail, item: str) -> tuple[Mail, bool]:
    mail = mail._replace(items=(*mail.items, item), is_listed=True)
    return (mail, False) if mail.attend else (mail._replace(attend=RINGING), True)


def _attend(mail: Mail, holder: str) -> tuple[Mail, bool]:
    is_free = mail.attend in ("", RINGING, holder)
    return (mail._replace(attend=holder), True) if is_free else (mail, False)


def _renew(mail: Mail, holder: str) -> tuple[Mail, bool]:
    return mail, mail.attend == holder


def _leave(mail: Mail, holder: str) -> tuple[Mail, bool]:
    if mail.attend != holder or mail.items:
        return mail, False
    return mail._replace(attend=""), True


def _release(mail: Mail, holder: str) -> tuple[Mail, bool]:
    if mail.attend != holder:
        return mail, False
    return mail._replace(attend=RINGING if mail.items else ""), bool(mail.items)


def _take(mail: Mail, holder: str, count: int) -> tuple[Mail, tuple[str, ...]]:
    if mail.attend != holder:
        return mail, ()
    items, rest = mail.items[:count], mail.items[count:]
    taken = tuple(sorted(mail.taken + items))
    return mail._replace(items=rest, is_listed=mail.is_listed and bool(rest), taken=taken), items


def _forgotten(mail: Mail) -> tuple[Mail, bool]:
    if not mail.items:
        return mail._replace(is_listed=False), False
    if not mail.is_listed or mail.attend:
        return mail, False
    return mail._replace(attend=RINGING), True


_MAIL: dict[str, Callable[..., tuple[Mail, Any]]] = {
    "post": _post,
    "attend": _attend,
    "renew": _renew,
    "leave": _leave,
    "release": _release,
    "take": _take,
    "forgotten": _forgotten,
}


class Entry(NamedTuple):
    """An event of a request: its owner, the offset, and the number of tokens."""

    offset: int
    size: int
    owner: str  # empty for one from outside
    finish: FinishReason | None


class Req(NamedTuple):
    """One request, and the owners whose leases live."""

    owner: str = ""
    status: Status = Status.ACTIVE
    entries: tuple[Entry, ...] = ()
    strikes: int = 0
    alive: frozenset[str] = frozenset()

    @property
    def length(self) -> int:
        """Count the committed tokens."""
        return sum(entry.size for entry in self.entries)


def request_step(req: Req, call: Call) -> tuple[Req, Any] | None:
    """Apply one call."""
    name, *args = call
    if name == "beat":
        return req._replace(alive=req.alive | {args[0]}), True
    if name == "die":
        return req._replace(alive=req.alive - {args[0]}), None
    if name == "snapshot":
        return req, (req.status, req.length)
    if name == "orphans":
        return req, req.status == Status.ACTIVE and req.owner not in req.alive
    result: tuple[Req, Any] = _REQUEST[name](req, *args)
    return result


def _assign(req: Req, owner: str) -> tuple[Req, bool]:
    if req.status != Status.ACTIVE or (req.owner != owner and req.owner in req.alive):
        return req, False
    strike = req.owner not in ("", owner)
    return req._replace(owner=owner, strikes=req.strikes + strike), True


def _commit(req: Req, owner: str, offset: int, size: int, finish: FinishReason | None) -> tuple[Req, Outcome]:
    entry = Entry(offset, size, owner, finish)
    if req.owner == owner and entry in req.entries:
        return req, Outcome.COMMITTED
    if req.status != Status.ACTIVE:
        return req, Outcome.ENDED
    if req.owner != owner:
        return req, Outcome.FENCED
    if offset != req.length:
        return req, Outcome.STALE
    return _append(req._replace(strikes=0), entry), Outcome.COMMITTED


def _end(req: Req, reason: FinishReason) -> tuple[Req, bool]:
    if req.status != Status.ACTIVE:
        return req, False
    return _append(req, Entry(req.length, 0, "", reason)), True


def _append(req: Req, entry: Entry) -> Req:
    status = req.status if entry.finish is None else final_status(entry.finish)
    return req._replace(entries=(*req.entries, entry), status=status)


_REQUEST: dict[str, Callable[..., tuple[Req, Any]]] = {"assign": _assign, "commit": _commit, "end": _end}
