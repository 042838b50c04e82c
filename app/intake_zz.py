"""A request on its way in: admitted and written down, or written down as turned away."""

import sys
import time
import uuid
from collections.abc import Collection

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.messages import PUBLIC_TENANT, FinishReason, Record
from app.request import GenerateRequest
from app.stages.admit import admit
from app.store.protocol import Requests


def take_in(
    request: GenerateRequest,
    tokenizer: Tokenizer,
    store: Requests,
    settings: Settings,
    *,
    request_id: str | None = None,
    tenant: str = PUBLIC_TENANT,
    task: str | None = None,
    drafters: Collection[str] | None = None,
) -> Record:
    """Admit a request and write it down. Asking again under the same id changes nothing. `drafters`: see `admit`.

    Raises InvalidRequest, QueueFull.
    """
    request_id = request_id or uuid.uuid4().hex
    now_s = time.time()
    record = admit(request, tokenizer, settings, request_id=request_id, tenant=tenant, now_s=now_s, drafters=drafters)
    record = record.model_copy(update={"is_task": task is not None})
    if not store.create(record, limit=settings.max_active_requests, task=task):
        return store.snapshot(request_id).record
    return record


def turn_away(
    request: GenerateRequest,
    tokenizer: Tokenizer,
    store: Requests,
    settings: Settings,
    error: str,
    *,
    request_id: str,
    task: str,
) -> bool:
    """Write a request down as one that failed; False if it is known, which then stays as it is.

    So it has one end: nobody can take it in afterwards. Raises InvalidRequest.
    """
    record = admit(request, tokenizer, settings, request_id=request_id, tenant=PUBLIC_TENANT, now_s=time.time())
    created = store.create(record.model_copy(update={"is_task": True}), limit=sys.maxsize, task=task)
    return created and store.end(request_id, FinishReason.ERROR, error)
