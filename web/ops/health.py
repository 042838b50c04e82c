"""Serve GET /healthz (this process answers), and GET /readyz (requests would be served, or the missing kinds).

GET /health is the latter as other servers name it, GET /version says what runs.
"""

import logging
from collections import Counter
from threading import Event as Flag

from flask import Blueprint, Response, jsonify

from app.errors import StoreUnavailable
from app.version import VERSION
from workers.deployment import Deployment

log = logging.getLogger(__name__)

NEEDED = ("control", "verify")  # requests are served without drafters and fusers, too (design D3)


def blueprint(deployment: Deployment, leaving: Flag) -> Blueprint:
    routes = Blueprint("health", __name__)

    @routes.get("/healthz")
    def healthz() -> tuple[Response, int]:
        return (jsonify(status="leaving"), 503) if leaving.is_set() else (jsonify(status="ok"), 200)

    @routes.get("/health")
    @routes.get("/readyz")
    def readyz() -> tuple[Response, int]:
        missing, nodes = _missing(deployment)
        return jsonify(ready=not missing, missing=missing, nodes=nodes), 503 if missing else 200

    @routes.get("/version")
    def show_version() -> Response:
        return jsonify(version=VERSION)

    return routes


def _missing(deployment: Deployment) -> tuple[list[str], dict[str, int]]:
    try:
        nodes = Counter(node.kind for node in deployment.nodes.live())
    except StoreUnavailable as error:
        log.warning("%s", error)
        return ["redis"], {}
    return [kind for kind in NEEDED if not nodes[kind]], dict(nodes)
