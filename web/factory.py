"""Build the web application: a deployment in, a Flask application out."""

from collections.abc import Sequence
from threading import Event as Flag

from flask import Flask, Response

from web import auth, cors, errors, host_check, openapi, page
from web.anthropic import routes as anthropic
from web.api import routes
from web.api.disconnects import DisconnectWatcher
from web.api.stream_limits import StreamLimits
from web.openai import routes as v1
from web.openai import tokens
from web.openai.answer import Answers
from web.ops import dashboard, health, metrics
from web.responses import routes as responses
from workers.deployment import Deployment

MAX_BODY_BYTES = 2**20  # a prompt of 8,000 tokens is some 40 kB; the rest is room for biases and allowed tokens
MAX_READERS = 256  # streams beside one of each request; a tenant has half of them
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
    deployment: Deployment, stopping: Flag | None = None, leaving: Flag | None = None, names: Sequence[str] = ()
) -> Flask:
    """Wire pages, APIs and error responses to `deployment`.

    Once `leaving` is set, /healthz tells a proxy so; once `stopping` is set, running streams end. `names`: host names
    of this process. Raises KeysUnreadable.
    """
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.register_blueprint(page.blueprint(deployment))
    app.register_blueprint(health.blueprint(deployment, leaving or Flag()))
    stopping = stopping or Flag()
    app.register_blueprint(metrics.blueprint(deployment))
    app.register_blueprint(dashboard.blueprint(deployment))
    disconnects = DisconnectWatcher(deployment)
    of_tenant = MAX_READERS if deployment.settings.keys is None else (MAX_READERS + 1) // 2
    stream_limits = StreamLimits(MAX_READERS, of_tenant)
    app.register_blueprint(routes.blueprint(deployment, disconnects, stream_limits, stopping))
    answers = Answers(deployment, disconnects, stream_limits, stopping)
    app.register_blueprint(v1.blueprint(deployment, answers))
    app.register_blueprint(responses.blueprint(answers))
    app.register_blueprint(anthropic.blueprint(answers))
    app.register_blueprint(tokens.blueprint(deployment))
    app.register_blueprint(openapi.blueprint(app, deployment.settings))  # documents the routes registered above
    errors.install(app)
    cors.install(app, deployment.settings)
    host_check.install(app, deployment.settings, names)
    auth.install(app, deployment.settings)
    app.after_request(_secure)
    return app


def _secure(response: Response) -> Response:
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    return response
