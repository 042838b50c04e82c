"""What every process of a deployment shares: the store, the mailboxes, the nodes, Celery's bell. No torch here."""

import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Self

from celery import Celery
from kombu.exceptions import OperationalError

from app.assembly.fuser import model_free_names
from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import drafter_folder, refusing, resolve
from app.errors import InvalidRequest, NotFound, QueueFull, StoreUnavailable
from app.intake_zz import take_in, turn_away
from app.logs import of
from app.messages import (
    FUSE,
    PUBLIC_TENANT,
    SETTLE,
    FinishReason,
    Mail,
    Record,
    Settle,
    ToVerifier,
    TreeMessage,
    mailbox_of,
)
from app.metrics import ADMITTED, ENDED, REFUSED
from app.request import GenerateRequest
from app.stages.route.policies import verifier
from app.store.connect import connect
from app.store.history import History
from app.store.mailbox import Mailboxes
from app.store.nodes import Nodes
from app.store.protocol import Orphan
from app.store.rate_limits import RateLimits
from app.store.requests import RequestStore
from app.store.shared_stats import SharedStatsStore
from app.store.tasks import ProgressStore, WaitingRoom
from app.store.traces import Traces
from app.telemetry.counters import Counters
from workers.celery_app import ATTEND, DOORBELL_TTL_S, mailbox_queue, make_celery

log = logging.getLogger(__name__)


class Deployment:
    """One process's way to all the others."""

    def __init__(self, settings: Settings, celery: Celery, tokenizer: Tokenizer) -> None:
        assert settings.redis_url is not None  # make_celery has refused that
        self._client = client = connect(settings.redis_url)
        self.settings = settings
        self.machine = settings.machine or socket.gethostname()
        self.celery = celery
        self.tokenizer = tokenizer
        self.counters = Counters()
        self.requests = RequestStore(
            client,
            settings.namespace,
            ttl_s=settings.request_ttl_s,
            active_ttl_s=settings.active_ttl_s,
            on_ended=lambda reason: self.counters.count(ENDED, reason),
            durable=settings.durable,
        )
        self.mailboxes = Mailboxes(client, settings.namespace, lease_s=settings.lease_s)
        self.nodes = Nodes(client, settings.namespace, lease_s=settings.lease_s)
        self.waiting = WaitingRoom(client, settings.namespace)
        self.noted: Callable[[str, float, str], None] = lambda name, start_s, request_id: None  # for traces
        self.progress = ProgressStore(client, settings.namespace)
        self.shared_stats = SharedStatsStore(client, settings.namespace)
        self.traces = Traces(client, settings.namespace)
        self.history = History(client, settings.namespace)
        self.rate_limits = RateLimits(client, settings.namespace, active_ttl_s=settings.active_ttl_s)

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Connect as the settings say. Raises StoreUnavailable, ModelRefused."""
        folder = resolve(settings.model, settings.home, log.info)
        with refusing(folder):
            tokenizer = Tokenizer(folder)
        return cls(settings, make_celery(settings), tokenizer)

    def close(self) -> None:
        """Close the connections. A process that ends need not; one that opens many deployments must."""
        self._client.close()
        self.celery.close()

    def submit(
        self,
        request: GenerateRequest,
        *,
        request_id: str | None = None,
        tenant: str = PUBLIC_TENANT,
        task: str | None = None,
    ) -> Record:
        """Admit, store and route a request. Raises InvalidRequest, QueueFull, StoreUnavailable.

        Once it is stored it is accepted: if routing fails, the sweep places it later.
        """
        start_s = time.time()
        record = self._take_in(request, request_id, tenant, task)
        try:
            self.place(record.id)
        except StoreUnavailable as error:
            log.warning("stored and not placed yet: %s", error, extra=of(record.id))
        self.noted("admit", start_s, record.id)
        return record

    def reject(self, request: GenerateRequest, request_id: str, task: str, error: str) -> None:
        """End a task's request that waited in vain, unless it was let in meanwhile. Raises InvalidRequest."""
        told = {"request_id": request_id, "task": task}
        if turn_away(request, self.tokenizer, self.requests, self.settings, error, **told):
            self.post(SETTLE, [Settle(request_id=request_id)])

    def _take_in(self, request: GenerateRequest, request_id: str | None, tenant: str, task: str | None) -> Record:
        try:
            record = take_in(
                request,
                self.tokenizer,
                self.requests,
                self.settings,
                request_id=request_id,
                tenant=tenant,
                task=task,
                drafters=self._drafters() if request.speculation.drafters else None,
            )
        except QueueFull:
            if task is None:  # a task waits for room
                self.counters.count(REFUSED, "full")
            raise
        except InvalidRequest:
            self.counters.count(REFUSED, "invalid")
            raise
        self.counters.count(ADMITTED, "web" if task is None else "task")
        log.info(
            "admitted: %d prompt tokens, %d at most", len(record.prompt_ids), record.max_tokens, extra=of(record.id)
        )
        return record

    def _drafters(self) -> set[str]:
        """Those that a request may name: alive, or in the settings, since one that is down now may come back."""
        alive = {name for node in self.nodes.live("draft") for name in node.info.get("drafters", ())}
        named = {drafter_folder(name).name for name in self.settings.drafters}
        return alive | named | set(model_free_names(self.settings, self.tokenizer))

    def place(self, request_id: str) -> None:
        """Give an unowned request to a verifier. Without a live one it waits: the sweep places it later."""
        live = self.nodes.live("verify")
        held = self.requests.held(node.owner for node in live) if len(live) > 1 else {}
        node = verifier(live, held)
        if node is not None and self.requests.assign(request_id, node.owner):
            self.post(mailbox_of("verify", node.name), [ToVerifier(adopt=(request_id,))])

    def post(self, mailbox: str, messages: Iterable[Mail]) -> None:
        """Put messages into a mailbox and ring if nobody attends it."""
        self.post_all({mailbox: messages})

    def post_all(self, mail: Mapping[str, Iterable[Mail]]) -> None:
        """`post` to several mailboxes, in one round trip."""
        now = {"sent_s": time.time()}
        written = {
            mailbox: [message.model_copy(update=now).model_dump_json() for message in messages]
            for mailbox, messages in mail.items()
        }
        for mailbox in self.mailboxes.post_all(written):
            self.ring(mailbox)

    def ring(self, mailbox: str) -> None:
        """Send the mailbox's worker a Celery task: somebody should look. The sweep repeats a ring that fails."""
        queue = mailbox_queue(self.settings, mailbox)
        try:
            self.celery.send_task(ATTEND, args=[mailbox], queue=queue, expires=DOORBELL_TTL_S, ignore_result=True)
        except OperationalError as error:
            log.warning("could not ring at %s: %s", mailbox, error)

    def sweep(self) -> None:
        """Bring on what stands still: requests without a live owner, mailboxes nobody attends. Any process may."""
        live = self.nodes.live()
        if any(node.kind == "verify" for node in live):
            orphans = self.requests.orphans()
            guilty = self._culprit([orphan for orphan in orphans if orphan.strikes >= self.settings.max_strikes])
            for orphan in orphans:
                if orphan is guilty:
                    self.give_up(orphan.request_id, orphan.strikes)
                else:
                    self.place(orphan.request_id)
        attended = {FUSE, SETTLE, *(mailbox_of(node.kind, node.name) for node in live)}
        for mailbox in self.mailboxes.forgotten():
            if mailbox in attended:  # doorbells for a dead instance would pile up; a restarted one rings for itself
                self.ring(mailbox)

    def _culprit(self, struck: list[Orphan]) -> Orphan | None:
        """Which of the requests that lost verifier after verifier brought the last one down: neighbours are not blamed.

        All of them ran alone there, whoever had waited longest first, and those before the guilty one committed.
        """
        if len(struck) < 2:
            return struck[0] if struck else None
        waiting: dict[tuple[float, str], Orphan] = {}
        for orphan in struck:
            with suppress(NotFound):
                snapshot = self.requests.snapshot(orphan.request_id)
                since_s = snapshot.stats.last_token_s or snapshot.record.created_s
                waiting[since_s, orphan.request_id] = orphan
        return waiting[min(waiting)] if waiting else None

    def give_up(self, request_id: str, strikes: int) -> None:
        """End a request that took down one verifier after the other."""
        from_whom = f"{strikes} verifiers died with this request before it committed a token"
        log.error("%s", from_whom, extra=of(request_id))
        try:
            self.requests.end(request_id, FinishReason.ERROR, from_whom)
        except NotFound:
            return
        self.post(SETTLE, [Settle(request_id=request_id)])


def trees_by_mailbox(trees: Iterable[tuple[str, TreeMessage]]) -> dict[str, ToVerifier]:
    """Fused trees: a verifier's sequences become ready together, and go into one batch."""
    found: dict[str, list[TreeMessage]] = {}
    for mailbox, tree in trees:
        found.setdefault(mailbox, []).append(tree)
    return {mailbox: ToVerifier(trees=tuple(own)) for mailbox, own in found.items()}


def send_trees(deployment: Deployment, trees: list[tuple[str, TreeMessage]]) -> None:
    """One message a verifier."""
    for mailbox, message in trees_by_mailbox(trees).items():
        deployment.post(mailbox, [message])
