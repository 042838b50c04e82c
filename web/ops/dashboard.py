"""Serve GET /dashboard, the live page, and its data.

    GET /dashboard/data?after=S        present state, samples after S (wall clock), latest requests
    GET /dashboard/requests/<trace>    which process worked on one request, and when

Requests have names that do not lead back to their text (`app/store/traces.py`).
"""

import json
import time
from typing import Any

from flask import Blueprint, Response, jsonify, render_template, request

from app.errors import InvalidRequest, NotFound
from app.metrics import (
    ACCEPTED,
    ACCEPTED_LENGTH,
    ASKED,
    AT_LOAD,
    DRAFTED,
    DRAFTED_AT_LOAD,
    ENDED,
    FIRST_TOKEN,
    PER_TOKEN,
)
from app.store.history import MOST
from app.store.protocol import Node
from web.drafter_list import drafter_list
from web.ops.deployment_state import DeploymentState, read_state, running
from workers.deployment import Deployment

REQUESTS = 16  # shown in the routing matrix
SHOWN = (
    "plan",
    "drafters",
    "waiting",
    "sequences",
    "cache_tokens",
    "cache_tokens_free",
    "ahead_hits",
    "ahead_misses",
    "host",
)


def blueprint(deployment: Deployment) -> Blueprint:
    routes = Blueprint("dashboard", __name__, url_prefix="/dashboard")

    @routes.get("")
    def index() -> str:
        settings = deployment.settings
        return render_template(
            "dashboard.html",
            model=settings.model_name,
            needs_key=settings.keys is not None,
            drafters=drafter_list(settings),
        )

    @routes.get("/data")
    def data() -> Response:
        now_s = time.time()
        after_s = _seconds("after")
        state = read_state(deployment)
        samples = deployment.history.last(min(MOST, max(2, int(now_s - after_s) + 2)))
        return _answer(
            {
                **_present(state, now_s),
                "samples": [sample for sample in samples if sample["at_s"] > after_s],
                "requests": [_progress(*found) for found in deployment.traces.recent(REQUESTS).items()],
            }
        )

    @routes.get("/requests/<trace>")
    def timeline(trace: str) -> Response:
        spans = deployment.traces.spans(trace)
        if not spans:
            raise NotFound(trace)
        return _answer({"trace": trace, "spans": spans})

    return routes


def _seconds(name: str) -> float:
    text = request.args.get(name, "0")
    try:
        value = float(text)
    except ValueError:
        raise InvalidRequest(name, "must be a number of seconds") from None
    if not 0.0 <= value < 1e12:
        raise InvalidRequest(name, "must be a time in seconds")
    return value


def _present(state: DeploymentState, now_s: float) -> dict[str, Any]:
    return {
        "now_s": now_s,
        "missing": state.missing,
        "policy": state.policy.model_dump(),
        "depths": state.depths,
        "active": state.active,
        "running": running(state.nodes),
        "nodes": [_node(node, now_s) for node in state.nodes],
        "positions": _positions(state),
        "load": _by_load(state),
        "lengths": state.histogram(ACCEPTED_LENGTH),
        "asked": state.by_label(ASKED),
        "ended": state.by_label(ENDED),
        "bounds": {
            "lengths": ACCEPTED_LENGTH.buckets,
            "first_token": FIRST_TOKEN.buckets,
            "per_token": PER_TOKEN.buckets,
        },
    }


def _node(node: Node, now_s: float) -> dict[str, Any]:
    info = {name: node.info[name] for name in SHOWN if name in node.info}
    return {"kind": node.kind, "name": node.name, "still_s": round(max(0.0, now_s - node.progress_s), 2), "info": info}


def _positions(state: DeploymentState) -> list[dict[str, Any]]:
    return [
        {
            "drafter": labels[0],
            "position": int(labels[1]) if labels[1].isdigit() else 0,
            "drafted": sums[0],
            "accepted": state.sums.get((ACCEPTED.name, labels), [0.0])[0],
        }
        for (name, labels), sums in sorted(state.sums.items())
        if name == DRAFTED.name and len(labels) == 2
    ]


def _by_load(state: DeploymentState) -> list[dict[str, float]]:
    drafted = state.by_label(DRAFTED_AT_LOAD)
    rounds = state.by_label(AT_LOAD)
    return [
        {"sequences": int(load), "rounds": count, "drafted": drafted.get(load, 0.0)}
        for load, count in sorted(rounds.items(), key=lambda item: (len(item[0]), item[0]))
        if load.isdigit()
    ]


def _progress(trace: str, facts: dict[str, str]) -> dict[str, Any]:
    return {"trace": trace, **{name: json.loads(text) for name, text in facts.items()}}


def _answer(body: dict[str, Any]) -> Response:
    response = jsonify(body)
    response.headers["Cache-Control"] = "no-store"
    return response
