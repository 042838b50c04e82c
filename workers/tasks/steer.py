"""Register the Celery task `paceline.steer`: read the load, decide by `app.beat`, publish the policy.

Each tick is logged if the settings name a file.
"""

import json
import logging
import time
from pathlib import Path

from celery import Celery
from pydantic import ValidationError

from app.beat import steer
from app.load import Load, MailboxLoad, VerifierLoad
from app.messages import FUSE, SETTLE, mailbox_of
from app.policy import Policy
from app.request import Message
from app.store.protocol import Node
from workers.celery_app import STEER
from workers.deployment import Deployment

log = logging.getLogger(__name__)
WORKERS = ("verify", "draft", FUSE, "control")  # kinds whose busy time is load


class Tick(Message):
    now_s: float  # wall clock
    load: Load
    before: Policy
    after: Policy


def register(celery: Celery, deployment: Deployment) -> None:
    @celery.task(name=STEER, ignore_result=True, send_events=False)  # one a second would hide all other events
    def steer_tick(*_: object, **__: object) -> None:  # a caller that reaches Redis may send any
        tick(deployment)


def tick(deployment: Deployment) -> None:
    """Concurrent ticks are harmless: the policy's version decides."""
    if not deployment.nodes.try_lock("steer", 0.5):
        return
    before, now_s, load = deployment.nodes.policy(), time.time(), load_of(deployment)
    after = steer(load, before)
    if after is not before:
        deployment.nodes.set_policy(after)
    if deployment.settings.steer_log is not None:
        _write(deployment.settings.steer_log, Tick(now_s=now_s, load=load, before=before, after=after))


def load_of(deployment: Deployment) -> Load:
    live = deployment.nodes.live()
    working = [node for node in live if node.kind in WORKERS]
    boxes = [mailbox_of(node.kind, node.name) for node in working if node.kind in ("verify", "draft")]
    return Load(
        active=deployment.requests.active(),
        waiting_room=len(deployment.waiting),
        drafters=len({name for node in live if node.kind == "draft" for name in node.info.get("drafters", ())}),
        mailboxes={box: _mailbox(deployment, box) for box in (*boxes, FUSE, SETTLE)},
        busy={mailbox_of(node.kind, node.name): float(node.info.get("busy", 0.0)) for node in working},
        verifiers=tuple(_verifier(node) for node in live if node.kind == "verify"),
    )


def _mailbox(deployment: Deployment, mailbox: str) -> MailboxLoad:
    first = deployment.mailboxes.first(mailbox)
    if first is None:
        return MailboxLoad()
    return MailboxLoad(waiting=deployment.mailboxes.waiting(mailbox), oldest_s=_age_s(first))


def _age_s(item: str) -> float:
    """0 for an invalid time."""
    try:
        sent_s = float(json.loads(item)["sent_s"])
    except (ValueError, KeyError, TypeError):
        return 0.0
    return max(0.0, time.time() - sent_s) if sent_s > 0.0 else 0.0


def _verifier(node: Node) -> VerifierLoad:
    try:
        return VerifierLoad.model_validate(node.info.get("load", {}))
    except ValidationError as error:  # sent by another version
        log.warning("the load that %s reports cannot be read: %s", node.name, error.errors()[0]["msg"])
        return VerifierLoad(sequences=int(node.info.get("sequences", 0)))


def _write(file: Path, line: Tick) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as out:
            out.write(line.model_dump_json() + "\n")
    except OSError as error:  # a full disk must not stop the controller
        log.warning("%s cannot be written: %s", file, error)
