"""Who calls: every route asks for a key, unless it is on the list of public ones. Without keys in use, none does.

`Authorization: Bearer <key>`, as OpenAI's clients send it. No cookies, so another site cannot act for a visitor.
"""

from flask import Flask, g, request

from app.api_keys import ApiKey, Keyring
from app.config import Settings
from app.errors import Unauthorized
from app.messages import PUBLIC_TENANT, Record

PUBLIC = frozenset(  # endpoints; the two pages are empty shells that ask for a key and fetch their data with it
    {
        "page.index",
        "dashboard.index",
        "static",
        "health.healthz",
        "health.readyz",
        "openapi.show",
    }
)
METRICS = "metrics.metrics"


def install(app: Flask, settings: Settings) -> None:
    """Ask for keys if the settings say where they are. Raises KeysUnreadable."""
    if settings.keys is None:
        return
    keyring = Keyring(settings.keys)
    public = PUBLIC | {METRICS} if settings.open_metrics else PUBLIC

    @app.before_request
    def check() -> None:
        if request.endpoint not in public:  # what has no route is closed, too
            g.key = _presented(keyring)


def caller() -> ApiKey | None:
    """The key of this call; None: no keys are in use."""
    key: ApiKey | None = g.get("key")
    return key


def tenant() -> str:
    """On whose behalf this call is made."""
    key = caller()
    return PUBLIC_TENANT if key is None else key.tenant


def may_see(record: Record) -> bool:
    """Is it the caller's? Where no keys are in use, everything is everybody's."""
    key = caller()
    return key is None or key.tenant == record.tenant


def _presented(keyring: Keyring) -> ApiKey:
    shown = request.authorization
    if shown is None or shown.type != "bearer" or not shown.token:
        raise Unauthorized("an API key is needed: Authorization: Bearer <key>")
    key = keyring.find(shown.token)
    if key is None:
        raise Unauthorized("this API key is not known")
    return key
