"""Run `python dummy_up.py INSTANCE`: the real supervisor and Redis with dummy services (dummy_service.py)."""

import signal
import sys
from pathlib import Path

from app.config import ROOT, Settings
from app.local.children import Service
from app.local.instance import Instance
from app.local.process_specs import settings_environment
from app.local.up import serve

SERVICE = Path(__file__).parent / "dummy_service.py"


def plan(settings: Settings, port: int) -> list[Service]:
    """Plan a web server and one worker."""
    return [_service(role, order, settings, port) for role, order in (("web", 0), ("verify", 1))]


def _service(role: str, order: int, settings: Settings, port: int) -> Service:
    name = f"{role}-1"
    return Service(
        role=role,
        name=name,
        argv=(sys.executable, str(SERVICE), role, name, str(port)),
        env={**settings_environment(settings), "PYTHONPATH": str(ROOT)},
        stop_order=order,
        last_signal=signal.SIGKILL,
    )


if __name__ == "__main__":
    chosen = Settings.from_env()
    serve(chosen, Instance(chosen.state, sys.argv[1]), None, print, lambda: print("READY", flush=True), plan)
