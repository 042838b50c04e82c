"""Connect a process to its deployment: the stores, admission, placing, mail and doorbells. Loads no torch."""

import logging
import socket
import sys
import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, Self

from celery import Celery
from kombu.exceptions import OperationalError
from msgspec.structs import replace

from app.assembly.fuser import model_free_names
from app.config import Settings
from app.counters import Counters
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import drafter_name, refusing, resolve
from app.errors import InvalidRequest, NotDurable, NotFound, QueueFull, StoreUnavailable
from app.logs import of
from app.messages import (
    PUBLIC_TENANT,
    SETTLE,
    FinishReason,
    Mail,
    Record,
    Settle,
    SharedPath,
    ToDrafter,
    ToVerifier,
    TreeMessage,
    mailbox_of,
)
from app.metrics import ADMITTED, ENDED, REFUSED
from app.request import GenerateRequest
from app.speculation.routing import serving, verifier
from app.stages.admit import admit
from app.store.append_only_file import AppendOnlyFile
from app.store.connect import connect
from app.store.event_feed import EventFeed
from app.store.history import History
from app.store.mailbox import Mailboxes
from app.store.nodes import Nodes
from app.store.protocol import ACTIVE_TTL_S
from app.store.rate_limits import RateLimits
from app.store.requests import RequestStore
from app.store.shared_stats import SharedStats, SharedStatsStore, StatsExchange
from app.store.tasks import Deliveries, ProgressStore, WaitingRoom
from app.store.traces import Traces
from workers.celery_app import ATTEND, DOORBELL_TTL_S, mailbox_queue, make_celery
from workers.tracing.spans import WorkSpan

log = logging.getLogger(__name__)
MOST_ADMISSIONS = 4096  # between two heartbeats


class Deployment:
    def __init__(self, settings: Settings, celery: Celery, tokenizer: Tokenizer) -> None:
        assert settings.redis_url is not None  # make_celery has refused that
        self._client = client = connect(settings.redis_url)
        self.settings: Final = settings
        self.machine: Final = settings.machine or socket.gethostname()
        self.celery: Final = celery
        self.tokenizer: Final = tokenizer
        self.counters: Final = Counters()
        self.admissions: Final = deque[WorkSpan](maxlen=MOST_ADMISSIONS)  # for the heartbeat to record
        self.requests: Final = RequestStore(
            client,
            settings.namespace,
            ttl_s=settings.request_ttl_s,
            active_ttl_s=ACTIVE_TTL_S,
            on_ended=lambda reason: self.counters.count(ENDED, reason),
            durable=settings.durable,
        )
        self.feed: Final = EventFeed(client, settings.namespace, self.requests)
        self.mailboxes: Final = Mailboxes(client, settings.namespace, lease_s=settings.lease_s)
        self.nodes: Final = Nodes(client, settings.namespace, lease_s=settings.lease_s)
        self.deliveries: Final = Deliveries(client, settings.namespace)
        self.waiting: Final = WaitingRoom(client, settings.namespace)
        self.progress: Final = ProgressStore(client, settings.namespace)
        self.shared_stats: Final = SharedStatsStore(client, settings.namespace)
        self.traces: Final = Traces(client, settings.namespace)
        self.history: Final = History(client, settings.namespace)
        self.append_only_file: Final = AppendOnlyFile(client)
        self.rate_limits: Final = RateLimits(client, settings.namespace, active_ttl_s=ACTIVE_TTL_S)

    @classmethod
    def open(cls, settings: Settings, tokenizer: Tokenizer | None = None) -> Self:
        """Raises StoreUnavailable, ModelRefused."""
        return cls(settings, make_celery(settings), tokenizer or load_tokenizer(settings))

    def close(self) -> None:
        self.feed.close()
        self._client.close()
        self.celery.close()

    def exchange_stats(self, stats: SharedStats) -> StatsExchange:
        """Load the deployment's `stats`, to be exchanged by the heartbeat. Raises StoreUnavailable."""
        exchange = StatsExchange(stats, self.shared_stats)
        exchange.beat()
        return exchange

    def submit(
        self,
        request: GenerateRequest,
        *,
        request_id: str | None = None,
        tenant: str = PUBLIC_TENANT,
        task: str | None = None,
    ) -> Record:
        """Admit, store and place a request, once for an id.

        A stored request is accepted: if placing fails, `workers.recovery` repeats it. `task`: the context of its Celery
        task. Raises InvalidRequest, QueueFull, StoreUnavailable.
        """
        start_s, request_id = time.time(), request_id or uuid.uuid4().hex
        drafters = self._drafters() if request.speculation.drafters else None
        try:
            record = admit(
                request,
                self.tokenizer,
                self.settings,
                request_id=request_id,
                tenant=tenant,
                is_task=task is not None,
                now_s=start_s,
                drafters=drafters,
            )
            if not self.requests.create(record, limit=self.settings.max_active_requests, task=task):
                record = self.requests.snapshot(request_id).record
        except QueueFull:
            if task is None:  # a task waits for room
                self.counters.count(REFUSED, "full")
            raise
        except InvalidRequest:
            self.counters.count(REFUSED, "invalid")
            raise
        except NotDurable:
            if task is None:  # who asked is refused, though it is stored; a task comes again by its id
                with suppress(StoreUnavailable, NotFound):
                    self.requests.end(request_id, FinishReason.CANCELLED)
            raise
        self.counters.count(ADMITTED, "web" if task is None else "task")
        log.info(
            "admitted: %d prompt tokens, %d at most", len(record.prompt_ids), record.max_tokens, extra=of(record.id)
        )
        try:
            self.place(record.id)
        except StoreUnavailable as error:
            log.warning("stored and not placed yet: %s", error, extra=of(record.id))
        self.admissions.append(WorkSpan("admit", start_s, time.time(), (record.id,)))
        return record

    def reject(self, request: GenerateRequest, request_id: str, task: str, error: str) -> None:
        """Store a task's request as failed, so that it cannot be admitted afterwards; a known one is unchanged.

        Raises InvalidRequest.
        """
        record = admit(request, self.tokenizer, self.settings, request_id=request_id, is_task=True, now_s=time.time())
        is_new = self.requests.create(record, limit=sys.maxsize, task=task)
        if is_new and self.requests.end(request_id, FinishReason.ERROR, error):
            self.post(SETTLE, [Settle(request_id=request_id)])

    def _drafters(self) -> set[str]:
        alive = {name for node in self.nodes.live("draft") for name in node.info.get("drafters", ())}
        named = {drafter_name(name) for name in self.settings.drafters}
        return alive | named | set(model_free_names(self.settings, self.tokenizer))

    def place(self, request_id: str, target: str = "") -> None:
        """Give an unowned request to a live verifier, of the `target` of its tokens, if there is one.

        `workers.recovery` repeats it.
        """
        live = serving(self.nodes.live("verify"), self.tokenizer.sha256, target)
        held = self.requests.held(node.owner for node in live) if len(live) > 1 else {}
        node = verifier(live, held)
        if node is not None and self.requests.assign(request_id, node.owner, node.info.get("target", "")):
            self.post(mailbox_of("verify", node.name), [ToVerifier(adopt=(request_id,))])

    def post(self, mailbox: str, messages: Iterable[Mail]) -> None:
        self.post_all({mailbox: messages})

    def post_all(self, mail: Mapping[str, Iterable[Mail]]) -> None:
        now_s = time.time()
        written = {
            mailbox: [replace(message, sent_s=now_s).json() for message in messages]
            for mailbox, messages in mail.items()
        }
        for mailbox in self.mailboxes.post_all(written):
            self.ring(mailbox)

    def ring(self, mailbox: str) -> None:
        """`workers.recovery` repeats a failed ring."""
        queue = mailbox_queue(self.settings, mailbox)
        try:
            self.celery.send_task(ATTEND, args=[mailbox], queue=queue, expires=DOORBELL_TTL_S, ignore_result=True)
        except OperationalError as error:
            log.warning("could not ring at %s: %s", mailbox, error)


def load_tokenizer(settings: Settings) -> Tokenizer:
    """Raises ModelRefused."""
    folder = resolve(settings.model, settings.home, log.info, engine=settings.engine)
    with refusing(folder):
        return Tokenizer(folder)


def trees_by_mailbox(trees: Iterable[tuple[str, TreeMessage]]) -> dict[str, list[ToVerifier]]:
    found: dict[str, list[TreeMessage]] = {}
    for mailbox, tree in trees:
        found.setdefault(mailbox, []).append(tree)
    return {mailbox: [ToVerifier(trees=tuple(own))] for mailbox, own in found.items()}


def paths_by_mailbox(paths: Iterable[tuple[str, SharedPath]]) -> dict[str, list[ToDrafter]]:
    found: dict[str, list[SharedPath]] = {}
    for mailbox, path in paths:
        found.setdefault(mailbox, []).append(path)
    return {mailbox: [ToDrafter(paths=tuple(own))] for mailbox, own in found.items()}
