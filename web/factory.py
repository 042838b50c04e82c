"""create_app(office): the whole web application, the only entry. Starts nothing and holds no state."""

from collections.abc import Sequence
from threading import Event as Flag

from flask import Flask, Response

from web import auth, errors, host_check, openapi, page
from web.api import routes
from web.api.disconnects import Leavers
from web.api.stream_limits import Seats
from web.office_zz import Office
from web.openai import routes as v1
from web.ops import dashboard, health, metrics

MAX_BODY_BYTES = 2**20  # a prompt of 8,000 tokens is some 40 kB; the rest is room for biases and allowed tokens

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def create_app(
    office: Office, stopping: Flag | None = None, leaving: Flag | None = None, names: Sequence[str] = ()
) -> Flask:
    """Wire pages, API and error answers to `office`. Once `stopping` is set, running streams end early; before that
    `leaving` has /healthz tell a proxy. `names`: what this process is called, beside what the settings say.

    Raises KeysUnreadable.
    """
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.register_blueprint(page.blueprint(office))
    app.register_blueprint(health.blueprint(office, leaving or Flag()))
    stopping = stopping or Flag()
    app.register_blueprint(metrics.blueprint(office))
    app.register_blueprint(dashboard.blueprint(office))
    leavers = Leavers(office)
    most = office.settings.max_readers
    seats = Seats(most, most if office.settings.keys is None else (most + 1) // 2)
    app.register_blueprint(routes.blueprint(office, leavers, seats, stopping))
    app.register_blueprint(v1.blueprint(office, leavers, seats, stopping))
    app.register_blueprint(openapi.blueprint(office))
    errors.install(app)
    host_check.install(app, office.settings, names)
    auth.install(app, office.settings)
    app.after_request(_secure)
    return app


def _secure(response: Response) -> Response:
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    return response
