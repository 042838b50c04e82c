"""Processes of the stress test: posters and attendants of one mailbox; a Redis list is Celery's queue."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import redis

from app.store.connect import connect
from app.store.mailbox import Mailboxes

NAMESPACE = "stress"
MAILBOX = "m"
DOORBELLS, DONE, STOP = "bells", "done", "stop"
BATCH = 16
LEASE_S = 0.4


def mailboxes(client: redis.Redis) -> Mailboxes:
    """Make the mailboxes under test; their leases are short enough to run out in it."""
    return Mailboxes(client, NAMESPACE, lease_s=LEASE_S)


def post_all(url: str, name: str, count: int) -> None:
    """Post `count` items, one at a time."""
    client = connect(url)
    boxes = mailboxes(client)
    for number in range(count):
        if boxes.post(MAILBOX, [f"{name}-{number}"]):
            client.rpush(DOORBELLS, "ring")


def attend_all(url: str, threads: int) -> None:
    """Answer doorbells until the key STOP appears."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_answer_doorbells, [url] * threads))


def _answer_doorbells(url: str) -> None:
    client = connect(url)
    boxes = mailboxes(client)
    while not client.exists(STOP):
        if client.blpop([DOORBELLS], 0.05):
            _stay(client, boxes)


def _stay(client: redis.Redis, boxes: Mailboxes) -> None:
    holder = uuid.uuid4().hex
    if not boxes.attend(MAILBOX, holder):
        return
    for _ in range(20):
        items = boxes.take(MAILBOX, holder, BATCH, 0.005)
        if items:
            client.rpush(DONE, *items)
        elif boxes.leave(MAILBOX, holder):
            return
        if not boxes.renew(MAILBOX, holder):
            return
    if boxes.release(MAILBOX, holder):
        client.rpush(DOORBELLS, "ring")
