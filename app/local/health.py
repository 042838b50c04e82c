"""Check an instance: every role needs a process, a heartbeat and recent progress, and the web server must answer."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Any

from app.counters import field
from app.errors import StoreUnavailable
from app.local.instance import ROLES, State
from app.metrics import AUDITS, GROUP
from app.request import Message
from app.store.connect import connect
from app.store.history import History
from app.store.nodes import Nodes
from app.store.protocol import Node
from app.store.shared_stats import SharedStatsStore

PROGRESS_S = 30.0  # a role without progress for longer hangs; an idle worker makes progress by waking up
HTTP_TIMEOUT_S = 2.0
SILENT = "no heartbeat"
RATE_S = 10  # of samples, one a second


class LoadReport(Message):
    """What the deployment does, by its last sample; `tokens_per_s` over RATE_S."""

    running: int
    waiting: int
    done: int
    tokens: int
    tokens_per_s: float
    acceptance: float | None  # of all draft tokens; None: none was verified


class Health(Message):
    """The answer of `paceline status --json`."""

    instance: str
    url: str | None = None
    redis_url: str | None = None
    namespace: str | None = None
    ready: bool = False  # requests are served, as /readyz says; problems may remain
    model: str | None = None  # as clients call it
    plan: str | None = None
    up_s: float | None = None  # since its supervisor began
    load: LoadReport | None = None
    processes: dict[str, tuple[int, ...]]
    memory_bytes: dict[str, int] = {}  # by role
    problems: tuple[str, ...] = ()
    nodes: dict[str, dict[str, Any]] = {}  # each live node's own report, e.g. of a verifier's cache
    audits: dict[str, int] = {}  # so far, by result


def check(instance: str, state: State | None, lease_s: float) -> Health:
    """Check an instance. `state` None: it does not run."""
    if state is None:
        return Health(instance=instance, processes=dict.fromkeys(ROLES, ()), problems=("not running",))
    nodes, found = _examine(state, lease_s)
    serves = not any(problem.startswith(("web:", "redis:")) for problem in found)
    plans = (node.info.get("plan") for node in nodes if node.kind == "verify")
    return Health(
        instance=state.instance,
        url=state.url,
        redis_url=state.redis_url,
        namespace=state.namespace,
        ready=serves,
        model=state.model or None,
        plan=next((plan for plan in plans if isinstance(plan, str)), None),
        up_s=round(time.time() - state.began_s, 1) if state.began_s else None,
        load=_load(state),
        processes=_pids(state),
        memory_bytes={role: sum(one.memory_bytes() for one in state.processes.get(role, ())) for role in ROLES},
        problems=tuple(found),
        nodes={node.name: node.info for node in nodes},
        audits=_audits(state) if nodes else {},
    )


def problems(state: State, lease_s: float) -> list[str]:
    return _examine(state, lease_s)[1]


def _examine(state: State, lease_s: float) -> tuple[list[Node], list[str]]:
    missing = [role for role, pids in _pids(state).items() if role in state.processes and not pids]
    found = [f"{role}: no process" for role in missing]
    nodes: list[Node] = []
    try:
        nodes = live(state.redis_url, state.namespace, lease_s)
        found += _silent([role for role in state.processes if role not in ("redis", *missing)], nodes)
    except StoreUnavailable as error:
        found.append(f"redis: {error}")
    web = web_problem(state.url)
    return nodes, [*found, web] if web else found


def web_problem(url: str) -> str | None:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=HTTP_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"web: /readyz answers {error.code}"
    except OSError as error:
        return f"web: no answer ({getattr(error, 'reason', error)})"


def _load(state: State) -> LoadReport | None:
    """Return None without a sample."""
    with closing(connect(state.redis_url)) as client, suppress(StoreUnavailable):
        samples = History(client, state.namespace).last(1 + RATE_S)
        return load_of(samples) if samples else None
    return None


def load_of(samples: list[dict[str, Any]]) -> LoadReport:
    """`samples`: at least one of `web/ops/history.py`, oldest first."""
    first, last = samples[0], samples[-1]
    tokens, passed_s = sum(last["tokens"].values()), last["at_s"] - first["at_s"]
    return LoadReport(
        running=last["running"],
        waiting=max(0, last["active"] - last["running"]) + last["depths"].get("room", 0),
        done=last["ended"],
        tokens=tokens,
        tokens_per_s=round((tokens - sum(first["tokens"].values())) / passed_s, 1) if passed_s > 0 else 0.0,
        acceptance=round(last["accepted"] / last["drafted"], 3) if last["drafted"] else None,
    )


def live(redis_url: str, namespace: str, lease_s: float) -> list[Node]:
    with closing(connect(redis_url)) as client:
        return Nodes(client, namespace, lease_s=lease_s).live()


def _audits(state: State) -> dict[str, int]:
    with closing(connect(state.redis_url)) as client, suppress(StoreUnavailable):
        sums = SharedStatsStore(client, state.namespace).load(GROUP)
        return {result: int(sums.get(field(AUDITS, (result,)), [0.0])[0]) for result in AUDITS.values}
    return {}


def standstill(name: str, nodes: Iterable[Node]) -> str | None:
    """Explain why none of these nodes, called `name`, makes progress; None if one does."""
    newest_s = max((node.progress_s for node in nodes), default=None)
    if newest_s is None:
        return f"{name}: {SILENT}"
    age_s = time.time() - newest_s
    return f"{name}: no progress for {age_s:.0f} s" if age_s > PROGRESS_S else None


def _silent(roles: Iterable[str], nodes: list[Node]) -> list[str]:
    found = [problem for role in roles if (problem := standstill(role, [node for node in nodes if node.kind == role]))]
    return sorted(found, key=lambda problem: not problem.endswith(SILENT))  # first those without a heartbeat


def _pids(state: State) -> dict[str, tuple[int, ...]]:
    return {role: tuple(one.worker() for one in state.processes.get(role, ()) if one.alive()) for role in ROLES}
