"""Inject faults by mail: items that are no messages, and messages that are stale, foreign, repeated, reordered,
damaged, or lies.

A fault's docstring is its line in `./paceline chaos --list`. Writes to mailboxes, queues and the drafter pool only.
"""

import itertools
import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from msgspec import to_builtins

from app.errors import MessageError
from app.messages import FUSE, DraftJob, DraftReport, Settle, ToDrafter, ToFuser, ToVerifier, TreeMessage, mailbox_of
from app.request import Sampling
from app.store.keys import Keys
from bench.chaos.deployment import Site, active, client, mailboxes_of
from workers.celery_app import control_queue, mailbox_queue

GARBAGE = ("", "{", "null", "[]", '{"trees": 7}', '{"adopt": ["nobody"]}', "\x00\xff", "9" * 5000)
LIES = 6
LIAR = "liar"
LISTEN_S = 1.0
TELL_S = 3.0
AT_ONCE = 32
QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')  # an argument in a line of MONITOR


def garbage(site: Site) -> None:
    """Put items that are no messages into every mailbox."""
    for mailbox in mailboxes_of(site):
        for item in GARBAGE:
            site.deployment.mailboxes.post(mailbox, [item])
        site.deployment.ring(mailbox)


def stale_and_foreign(site: Site) -> None:
    """Send valid but wrong messages: of other lengths, of no request, twice, to wrong mailboxes."""
    trees = [_tree(name, base) for name in [*active(site), "nobody"] for base in (1, 2, 10**6)]
    jobs = [_job(name) for name in [*active(site), "nobody"]]
    for mailbox in mailboxes_of(site):
        for message in (ToVerifier(trees=tuple(trees), adopt=("nobody", *active(site))), ToDrafter(jobs=tuple(jobs))):
            site.deployment.post(mailbox, [message, message])
        site.deployment.post(mailbox, [ToFuser(jobs=tuple(jobs)), Settle(request_id="nobody")])


def lying_trees(site: Site) -> None:
    """Send wrong trees for running requests: in tokens, vocabulary, shape and confidence."""
    until_s = time.monotonic() + 2.0
    verifiers = [mailbox_of("verify", node.name) for node in site.deployment.nodes.live("verify")]
    while time.monotonic() < until_s:
        lies = []
        for name in active(site):
            with suppress(Exception):
                length = len(site.deployment.requests.snapshot(name).tokens)
                prompt = len(site.deployment.requests.snapshot(name).record.prompt_ids)
                lies += [_tree(name, prompt + length + ahead, lie) for ahead in (0, 1, 2) for lie in range(LIES)]
        site.draw.shuffle(lies)
        for mailbox in verifiers:
            site.deployment.post(mailbox, [ToVerifier(trees=(lie,)) for lie in lies[:64]])
        time.sleep(0.02)


def ring_all(site: Site) -> None:
    """Ring the doorbell of every mailbox without mail."""
    for mailbox in mailboxes_of(site):
        for _ in range(10):
            site.deployment.ring(mailbox)


def replayed(site: Site) -> None:
    """Send a second's mail again, with its doorbells: in another order, twice, and damaged."""
    connection, heard = client(site), [*_overheard(site, LISTEN_S)]
    until_s = time.monotonic() + TELL_S
    while heard and time.monotonic() < until_s:
        for key, item in site.draw.sample(heard, min(AT_ONCE, len(heard))):
            for text in (item, item, _damaged(item, site)):
                connection.rpush(key, text)
        for mailbox in mailboxes_of(site):
            site.deployment.ring(mailbox)
        time.sleep(0.05)


def broken_tasks(site: Site) -> None:
    """Put items that are no tasks, and unknown tasks, into Celery's own queues."""
    settings, connection = site.deployment.settings, client(site)
    queues = [mailbox_queue(settings, mailbox) for mailbox in mailboxes_of(site)]
    for queue in {*queues, control_queue(settings), settings.queue}:
        site.deployment.celery.send_task("paceline.unknown", queue=queue, ignore_result=True)
        site.deployment.celery.send_task("paceline.attend", args=[7, 8, 9], queue=queue, ignore_result=True)
        site.deployment.celery.send_task("paceline.attend", args=["draft:nobody"], queue=queue, ignore_result=True)
        for item in GARBAGE:
            connection.lpush(queue, item)


def lying_drafter(site: Site) -> None:
    """Add a drafter that answers every job with one lie after another; its heartbeat lies, too."""
    deployment, owner, lies = site.deployment, uuid.uuid4().hex, itertools.cycle(range(len(DRAFT_LIES)))
    mailbox = mailbox_of("draft", LIAR)
    until_s = time.monotonic() + 2 * TELL_S
    while time.monotonic() < until_s:
        info = {"drafters": [LIAR], "tokenizer": deployment.tokenizer.sha256, "host": LIAR, "waiting": 0}
        deployment.nodes.beat(
            "draft", LIAR, owner, progress_s=time.time(), info={**info, **site.draw.choice(INFO_LIES)}
        )
        if deployment.mailboxes.attend(mailbox, owner):
            for item in deployment.mailboxes.take(mailbox, owner, 64, 0.02):
                with suppress(MessageError):  # it fuses as well, and then receives its own lies
                    for job in ToDrafter.read(item).jobs:
                        _answer(site, job, next(lies))
    deployment.nodes.retire("draft", LIAR, owner)
    deployment.mailboxes.release(mailbox, owner)


# Fields that replace those of a sound draft; "{}" leaves it sound, with wrong tokens.
DRAFT_LIES: tuple[dict[str, Any], ...] = (
    {},
    {"tokens": [10**9, 1, 1]},
    {"tokens": [-5, 2, 2]},
    {"tokens": [1] * 500, "parents": [*range(500)], "confidences": [1.0] * 500},
    {"tokens": [1] * 20, "parents": [0] * 20, "confidences": [0.9] * 20},
    {"parents": [9, 9, 9]},
    {"parents": [0, -1, 5]},
    {"confidences": [float("nan")] * 3},
    {"confidences": [1e300, -1.0, float("inf")]},
    {"confidences": []},
    {"drafter": "target"},
    {"drafter": "lookup"},
    {"drafter": ""},
    {"base": 1},
    {"base": 10**9},
    {"request_id": "nobody"},
    {"borrowed": [1, 2, 3]},
    {"tokens": "all"},
)
INFO_LIES: tuple[dict[str, Any], ...] = (
    {},
    {"waiting": "many"},
    {"waiting": -(10**9)},
    {"drafters": 7},
    {"drafters": [None, {}]},
    {"readers": 7},
    {"busy": "very", "host": None},
    {"tokenizer": 7},
)


def _answer(site: Site, job: DraftJob, lie: int) -> None:
    """Send the lie to the job's fuser, and in the fuser's name to the verifier."""
    draft = {
        "request_id": job.request_id,
        "base": job.base,
        "drafter": LIAR,
        "tokens": [7, 7, 7],
        "parents": [0, 1, 2],
        "confidences": [0.999] * 3,
        **DRAFT_LIES[lie],
    }
    for box, message in (
        (job.fuser, {"drafts": [draft, draft]}),
        (job.verifier, {"trees": [to_builtins(_tree(job.request_id, job.base, lie % LIES))]}),
    ):
        if site.deployment.mailboxes.post(box, [json.dumps(message)]):
            site.deployment.ring(box)


def _overheard(site: Site, for_s: float) -> Iterator[tuple[str, bytes]]:
    """Yield (key, item) of everything put into mailboxes for `for_s` seconds."""
    prefix = Keys(site.deployment.settings.namespace).mail("")
    connection = client(site)
    with connection.monitor() as monitor:
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s and monitor.connection.can_read(for_s):
            parts = [_unquoted(part) for part in QUOTED.findall(monitor.connection.read_response())]
            if len(parts) == 3 and parts[0].upper() == b"RPUSH" and parts[1].startswith(prefix.encode()):
                yield parts[1].decode(), parts[2]


def _unquoted(text: bytes) -> bytes:
    return text.decode("unicode_escape").encode("latin-1")


def _damaged(item: bytes, site: Site) -> bytes:
    """Return the item cut off, or with another byte or digit somewhere."""
    place, kind = site.draw.randrange(max(1, len(item))), site.draw.randrange(3)
    if kind == 0:
        return item[:place]
    if kind == 1:
        return item[:place] + bytes([site.draw.randrange(256)]) + item[place + 1 :]
    digits = [found.start() for found in re.finditer(rb"[0-9]", item)] or [place]
    place = site.draw.choice(digits)
    return item[:place] + str(site.draw.randrange(10)).encode() + item[place + 1 :]


def _tree(request_id: str, base: int, lie: int = 0) -> TreeMessage:
    """Return a tree that is wrong in one of LIES ways."""
    tokens: tuple[int, ...] = ((7, 7, 7), (10**9, 1, 1), (3,), (1,) * 500, (-5, 2), (5, 6, 7))[lie]
    parents = tuple(range(len(tokens))) if lie != 2 else (9,)
    sure = float("nan") if lie == 5 else 0.999
    return TreeMessage(
        request_id=request_id,
        base=base,
        tokens=tokens,
        parents=parents,
        survival=(sure,) * len(tokens),
        proposers=(("liar",),) * len(tokens),
        confidence={"liar": sure},
        reports={"liar": DraftReport(guess_s=-1.0, guessed=10**9, read_s=sure, read_tokens=-3, seen=10**9)},
    )


def _job(request_id: str) -> DraftJob:
    return DraftJob(
        request_id=request_id,
        verifier="verify:nobody",
        fuser=FUSE,
        base=3,
        start=0,
        tokens=(1, 2, 3),
        prompt_length=1,
        max_draft_tokens=4,
        drafters=("nobody", "lookup"),
        sampling=Sampling(seed=0),
        due_s=0.0,
    )
