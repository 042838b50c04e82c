"""Keep a worker's mail in a Redis list; its doorbell is rung only if no process attends (design D4).

Items are hints (design D10). A waiting item always has an attendant, a fresh ringing mark, or a mention by `forgotten`;
a process without the attending lease takes nothing. The caller rings the doorbell.
"""

import time
from typing import Any

import redis

from app.store.connect import BLOCK_S, Script, SentRuns
from app.store.keys import Keys

RINGING_S = 2.0  # a doorbell not answered for so long counts as lost
MAIL_TTL_S = 600.0  # since the last post
MAX_WAITING = 10_000  # items a mailbox holds; beyond it the oldest are dropped


class Mailboxes:
    """Thread-safe; every method raises StoreUnavailable."""

    def __init__(self, client: redis.Redis, namespace: str, *, lease_s: float) -> None:
        self._client = client
        self._keys = Keys(namespace)
        self._lease_ms = int(lease_s * 1000)
        self._post = Script(client, "post")
        self._attend = Script(client, "attend")
        self._renew = Script(client, "renew")
        self._leave = Script(client, "leave")
        self._release = Script(client, "release")
        self._take = Script(client, "take")
        self._forgotten = Script(client, "forgotten")

    def post(self, mailbox: str, items: list[str]) -> bool:
        """Return whether the caller must ring, since no process attends."""
        return bool(self.post_all({mailbox: items}))

    def post_all(self, mail: dict[str, list[str]]) -> list[str]:
        """Take one round trip; return the mailboxes to ring."""
        calls = [self._post_call(mailbox, items) for mailbox, items in mail.items() if items]
        rung = self._post.send(calls).replies() if calls else []
        return [call[1][0] for call, ring in zip(calls, rung, strict=True) if ring]

    def attend(self, mailbox: str, holder: str) -> bool:
        """Take the attending lease if it is free, only rung for, or already the holder's."""
        return bool(self._attend([self._keys.attend(mailbox)], [holder, self._lease_ms]))

    def renew(self, mailbox: str, holder: str) -> bool:
        return bool(self._renew([self._keys.attend(mailbox)], [holder, self._lease_ms]))

    def leave(self, mailbox: str, holder: str) -> bool:
        """Drop the lease if no item waits; False if items wait or it is lost."""
        return bool(self._leave([self._keys.mail(mailbox), self._keys.attend(mailbox)], [holder]))

    def release(self, mailbox: str, holder: str) -> bool:
        """Drop the lease; True if items wait: the caller must ring."""
        return bool(self._release([self._keys.mail(mailbox), self._keys.attend(mailbox)], [holder, _RINGING_MS]))

    def take(self, mailbox: str, holder: str, count: int, wait_s: float) -> list[str]:
        """Take up to `count` items, waiting up to `wait_s` for the first; none if the lease is lost.

        The wait only looks (BLMOVE from head to head), since a blocking pop cannot check the lease.
        """
        until = time.monotonic() + wait_s
        while True:
            left_s = until - time.monotonic()
            items = taken(self.look(mailbox, holder, count, min(left_s, BLOCK_S)))
            if items or left_s <= BLOCK_S:
                return items

    def look(self, mailbox: str, holder: str, count: int, wait_s: float) -> SentRuns:
        """Begin to take items: `taken` returns them. Waits at most BLOCK_S for the first."""
        mail = self._keys.mail(mailbox)
        keys, args = [mail, self._keys.attend(mailbox), self._keys.mailboxes], [mailbox, holder, count]
        after = ("BLMOVE", mail, mail, "LEFT", "LEFT", wait_s) if wait_s > 0.0 else ()
        return self._take.send([(keys, args)], after)

    def waiting(self, mailbox: str) -> int:
        return int(self._client.llen(self._keys.mail(mailbox)))

    def first(self, mailbox: str) -> str | None:
        found = self._client.lindex(self._keys.mail(mailbox), 0)
        return None if found is None else str(found)

    def forgotten(self) -> list[str]:
        """Return and mark mailboxes with items but without attendant or fresh ringing mark: one caller rings."""
        args = [_RINGING_MS, self._keys.mail(""), self._keys.attend("")]
        return list(self._forgotten([self._keys.mailboxes], args))

    def _post_call(self, mailbox: str, items: list[str]) -> tuple[list[str], list[Any]]:
        keys = [self._keys.mail(mailbox), self._keys.attend(mailbox), self._keys.mailboxes]
        return keys, [mailbox, _RINGING_MS, int(MAIL_TTL_S * 1000), MAX_WAITING, *items]


def taken(look: SentRuns) -> list[str]:
    """Wait for a look's items. Raises StoreUnavailable."""
    return list(look.replies()[0])


_RINGING_MS = int(RINGING_S * 1000)
