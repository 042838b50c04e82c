"""Submit the requests of one call within its key's limits."""

from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

from app.errors import StoreUnavailable
from app.messages import Record
from app.request import GenerateRequest
from web.api.request_events import cancel
from web.auth import caller, tenant
from workers.deployment import Deployment


def submit(deployment: Deployment, requests: Sequence[GenerateRequest]) -> list[Record]:
    """Submit all or none. Raises InvalidRequest, QueueFull, OverLimit, StoreUnavailable."""
    named = {uuid4().hex: request for request in requests}
    key = caller()
    if key is None:
        return _all(deployment, named)
    ids = list(named)
    deployment.rate_limits.take(key, ids)
    try:
        records = _all(deployment, named)
    except Exception:
        with suppress(StoreUnavailable):
            deployment.rate_limits.give_back(key, ids)
        raise
    with suppress(StoreUnavailable):  # they are accepted; their places stay reserved for a while
        deployment.rate_limits.stored(key, ids)
    return records


def _all(deployment: Deployment, requests: dict[str, GenerateRequest]) -> list[Record]:
    records: list[Record] = []
    try:
        for request_id, request in requests.items():
            records.append(deployment.submit(request, request_id=request_id, tenant=tenant()))
    except Exception:
        cancel(deployment, [record.id for record in records])
        raise
    return records
