"""GET /healthz: this process answers and stays. GET /readyz: a request would be worked on, or what is missing."""

import logging
from collections import Counter
from threading import Event as Flag

from flask import Blueprint, Response, jsonify

from app.errors import StoreUnavailable
from workers.deployment import Deployment

log = logging.getLogger(__name__)

NEEDED = ("control", "verify")  # without drafters and fusion requests are served all the same (D3)


def blueprint(deployment: Deployment, leaving: Flag) -> Blueprint:
    """The two routes. Once `leaving` is set, the first says so: new calls belong elsewhere."""
    routes = Blueprint("health", __name__)

    @routes.get("/healthz")
    def healthz() -> tuple[Response, int]:
        return (jsonify(status="leaving"), 503) if leaving.is_set() else (jsonify(status="ok"), 200)

    @routes.get("/readyz")
    def readyz() -> tuple[Response, int]:
        missing, nodes = _missing(deployment)
        return jsonify(ready=not missing, missing=missing, nodes=nodes), 503 if missing else 200

    return routes


def _missing(deployment: Deployment) -> tuple[list[str], dict[str, int]]:
    """Kinds of processes that are needed and not there, and how many there are of each kind."""
    try:
        nodes = Counter(node.kind for node in deployment.nodes.live())
    except StoreUnavailable as error:
        log.warning("%s", error)
        return ["redis"], {}
    return [kind for kind in NEEDED if not nodes[kind]], dict(nodes)
