"""`python -m web.run --host 127.0.0.1 --port 8000`: the web server of a deployment, until SIGTERM or SIGINT.

Settings come from PACELINE_*. Neither torch nor transformers is loaded here.
"""

import argparse
import logging
import os
import secrets
import signal
import threading
import time
from types import FrameType

from workers.office import Office

from app.config import Settings
from app.errors import PacelineError
from app.store.nodes import Nodes
from web.factory import create_app
from web.server import WebServer

log = logging.getLogger(__name__)

KIND = "web"
DEFAULT_NAME = "web-1"


def main(argv: list[str] | None = None) -> int:
    """Serve until told to stop; give the exit status."""
    args = _arguments(argv)
    settings = Settings.from_env()
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stopping = _stop_on_signals()
    office = Office.open(settings)
    server = WebServer(create_app(office, stopping), args.host, args.port, settings.max_active_requests)
    heartbeat = threading.Thread(
        target=_beat, args=(office.nodes, settings, server, stopping), name="heartbeat", daemon=True
    )
    heartbeat.start()
    log.info("serving on http://%s:%d", args.host, server.port)
    server.serve(stopping)
    heartbeat.join(timeout=2)
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="web.run", description="Paceline's web server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    return parser.parse_args(argv)


def _stop_on_signals() -> threading.Event:
    stopping = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return stopping


def _beat(nodes: Nodes, settings: Settings, server: WebServer, stopping: threading.Event) -> None:
    """Register this process until `stopping`. Its progress: when last no request waited for a thread."""
    name, owner = settings.node or DEFAULT_NAME, secrets.token_hex(8)
    progress_s = time.time()
    while not stopping.is_set():
        progress_s = time.time() if server.is_keeping_up() else progress_s
        try:
            if not nodes.beat(KIND, name, owner, progress_s=progress_s, info={"pid": os.getpid()}):
                # after a kill the last life's name runs out by itself; requests are served in the meantime
                log.warning("another process is registered as %s", name)
        except PacelineError as error:
            log.warning("no heartbeat: %s", error)
        stopping.wait(settings.lease_s / 4)
    try:
        nodes.retire(KIND, name, owner)
    except PacelineError as error:
        log.warning("not retired: %s", error)


if __name__ == "__main__":
    raise SystemExit(main())
