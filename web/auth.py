"""Authenticate a call by its Authorization header: the caller's API key and tenant, or 401.

With keys in use, every route but the public ones needs `Authorization: Bearer <key>`, or `X-Api-Key: <key>` as
Anthropic's clients send it. No cookies, so another site
cannot act for a visitor.
"""

from flask import Flask, g, request

from app.api_keys import ApiKey, Keyring
from app.config import Settings
from app.errors import Unauthorized
from app.messages import PUBLIC_TENANT, Record

PUBLIC = frozenset(  # endpoints; the two pages are empty shells with a field for the key, and fetch their data with it
    {
        "page.index",
        "dashboard.index",
        "static",
        "health.healthz",
        "health.readyz",
        "health.show_version",
        "openapi.show",
    }
)
METRICS = "metrics.metrics"


def install(app: Flask, settings: Settings) -> None:
    """Demand keys if the settings name a file of them. Raises KeysUnreadable."""
    if settings.keys is None:
        return
    keyring = Keyring(settings.keys)
    public = PUBLIC | {METRICS} if settings.open_metrics else PUBLIC

    @app.before_request
    def check() -> None:
        if request.endpoint not in public:  # a path without a route needs a key, too
            g.key = _presented(keyring)


def caller() -> ApiKey | None:
    """None without keys in use."""
    key: ApiKey | None = g.get("key")
    return key


def tenant() -> str:
    key = caller()
    return PUBLIC_TENANT if key is None else key.tenant


def may_see(record: Record) -> bool:
    """True without keys in use."""
    key = caller()
    return key is None or key.tenant == record.tenant


def _presented(keyring: Keyring) -> ApiKey:
    header = request.authorization
    token = header.token if header is not None and header.type == "bearer" else request.headers.get("X-Api-Key")
    if not token:
        raise Unauthorized("an API key is required: send the header Authorization: Bearer <key>")
    key = keyring.find(token)
    if key is None:
        raise Unauthorized("this API key is unknown")
    return key
