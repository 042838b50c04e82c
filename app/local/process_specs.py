"""Describe the processes of an instance on one machine: command and environment of each. Starts nothing."""

import hashlib
import re
import sys
from pathlib import Path

from app.config import NO_FILE, ROOT, THREAD_ENVIRONMENT, Settings, as_text, variable
from app.engine.weights.resolve import drafter_name
from app.local.children import Service
from app.local.instance import Instance

WEB_STOPS, WORKERS_STOP = 0, 1  # Redis stops after both


def namespace(settings: Settings, instance: Instance) -> str:
    """Choose the prefix of the instance's keys: one of its own in a Redis that others may use, too."""
    if settings.redis_url is None or "namespace" in settings.model_fields_set:
        return settings.namespace
    place = hashlib.sha256(str(instance.folder).encode()).hexdigest()[:8]
    return f"paceline-{instance.name}-{place}"


def services(settings: Settings, port: int) -> list[Service]:
    """List workers and web server. `settings` must name the Redis, the namespace and the model's folder."""
    threads = {"verify": settings.verify_threads, "draft": settings.draft_threads}
    threads["engine"] = max(threads.values())
    workers = [
        worker(role, name, own, threads.get(role, 1))
        for role in _roles(settings)
        for name, own in (_draft_nodes(settings) if role == "draft" else {f"{role}-1": settings}).items()
    ]
    web = Service(
        role="web",
        name="web-1",
        argv=(sys.executable, "-m", "web.run", "--host", settings.host, "--port", str(port)),
        # Two heaps: else each of its many threads keeps one.
        env={**_environment(settings, "web-1", 1), "MALLOC_ARENA_MAX": "2"},
        stop_order=WEB_STOPS,
        cwd=ROOT,
    )
    return [*workers, web]


def _roles(settings: Settings) -> list[str]:
    if not settings.drafters or not settings.plan.drafts:
        return ["control", "fuse", "verify", "beat"]
    if settings.plan.placement == "together":
        return ["control", "fuse", "engine", "beat"]
    return ["control", "fuse", "draft", "verify", "beat"]


def _draft_nodes(settings: Settings) -> dict[str, Settings]:
    if settings.plan.placement != "nodes":
        return {"draft-1": settings}
    nodes: dict[str, Settings] = {}
    for drafter in settings.drafters:
        name = "draft-" + re.sub(r"[^A-Za-z0-9_.-]", "-", drafter_name(drafter))
        name += f"-{len(nodes) + 1}" * (name in nodes)
        nodes[name] = settings.model_copy(update={"drafters": (drafter,)})
    return nodes


def worker(role: str, name: str, settings: Settings, threads: int) -> Service:
    python, more = interpreter(role, settings)
    return Service(
        role="verify" if role == "engine" else role,
        also=("draft",) if role == "engine" else (),
        name=name,
        argv=(python, "-m", "workers.run", role, "--node", name),
        env=_environment(settings, name, threads) | more,
        stop_order=WORKERS_STOP,
        cwd=ROOT,
    )


def interpreter(role: str, settings: Settings) -> tuple[str, dict[str, str]]:
    """Return a role's Python, and what its environment needs: a verifier on vLLM has one of its own."""
    python = settings.vllm_python
    if role != "verify" or settings.engine != "vllm" or python is None:
        return sys.executable, {}
    openmp = python.parent.parent / "lib" / "libiomp5.so"  # Intel's, without which vLLM's CPU kernels are slower
    return str(python), {"LD_PRELOAD": str(openmp)} if openmp.is_file() else {}


def _environment(settings: Settings, node: str, threads: int) -> dict[str, str]:
    return {
        **NO_FILE,
        **settings_environment(settings.model_copy(update={"node": node})),
        **THREAD_ENVIRONMENT,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def settings_environment(settings: Settings) -> dict[str, str]:
    values = {name: getattr(settings, name) for name in type(settings).model_fields if name != "api_key"}
    return {
        variable(name): as_text(value.absolute() if isinstance(value, Path) else value)
        for name, value in values.items()
        if value is not None
    }
