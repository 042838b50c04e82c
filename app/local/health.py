"""Check the health of an instance: its processes, heartbeats, progress, and web server.

A live process is not enough: every role needs a heartbeat in Redis and recent progress, and the web server must
answer at /readyz.
"""

import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

from app.errors import StoreUnavailable
from app.local.instance import ROLES, State
from app.request import Message
from app.store.connect import connect
from app.store.nodes import Nodes
from app.store.protocol import Node

PROGRESS_S = 30.0  # a role without progress for longer hangs; an idle worker makes progress by waking up
HTTP_TIMEOUT_S = 2.0
SILENT = "no heartbeat"


class Health(Message):
    """The answer of `paceline status --json`."""

    instance: str
    url: str | None = None
    redis_url: str | None = None
    namespace: str | None = None
    ready: bool = False
    processes: dict[str, tuple[int, ...]]
    problems: tuple[str, ...] = ()
    nodes: dict[str, dict[str, Any]] = {}  # each live node's own report, e.g. of a verifier's cache


def check(instance: str, state: State | None, lease_s: float) -> Health:
    """Check an instance. `state` None: it does not run."""
    if state is None:
        return Health(instance=instance, processes=dict.fromkeys(ROLES, ()), problems=("not running",))
    found = problems(state, lease_s)
    return Health(
        instance=state.instance,
        url=state.url,
        redis_url=state.redis_url,
        namespace=state.namespace,
        ready=not found,
        processes=_pids(state),
        problems=tuple(found),
        nodes=_reports(state, lease_s),
    )


def problems(state: State, lease_s: float) -> list[str]:
    """List the reasons why the instance is not ready; none when it is."""
    wanted = [role for role in state.processes if role != "redis"]
    missing = [role for role, pids in _pids(state).items() if role in state.processes and not pids]
    found = [f"{role}: no process" for role in missing]
    found += _silent([role for role in wanted if role not in missing], state, lease_s)
    web = web_problem(state.url)
    return [*found, web] if web else found


def web_problem(url: str) -> str | None:
    """Explain why the web server is not ready; None when it is."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=HTTP_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"web: /readyz answers {error.code}"
    except OSError as error:
        return f"web: no answer ({getattr(error, 'reason', error)})"


def live(redis_url: str, namespace: str, lease_s: float) -> list[Node]:
    client = connect(redis_url)
    try:
        return Nodes(client, namespace, lease_s=lease_s).live()
    finally:
        client.close()


def standstill(name: str, nodes: Iterable[Node]) -> str | None:
    """Explain why none of these nodes, called `name`, makes progress; None if one does."""
    newest_s = max((node.progress_s for node in nodes), default=None)
    if newest_s is None:
        return f"{name}: {SILENT}"
    age_s = time.time() - newest_s
    return f"{name}: no progress for {age_s:.0f} s" if age_s > PROGRESS_S else None


def _reports(state: State, lease_s: float) -> dict[str, dict[str, Any]]:
    try:
        return {node.name: node.info for node in live(state.redis_url, state.namespace, lease_s)}
    except StoreUnavailable:
        return {}  # `problems` reports it


def _silent(roles: Iterable[str], state: State, lease_s: float) -> list[str]:
    try:
        nodes = live(state.redis_url, state.namespace, lease_s)
    except StoreUnavailable as error:
        return [f"redis: {error}"]
    found = [problem for role in roles if (problem := standstill(role, [node for node in nodes if node.kind == role]))]
    return sorted(found, key=lambda problem: not problem.endswith(SILENT))  # the silent ones first


def _pids(state: State) -> dict[str, tuple[int, ...]]:
    return {role: tuple(process.pid for process in state.processes.get(role, ()) if process.alive()) for role in ROLES}
