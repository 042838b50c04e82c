"""Run the web server of a deployment: `python -m web.run --host 127.0.0.1 --port 8000`.

At the first SIGTERM or SIGINT it finishes the running calls, for up to PACELINE_DRAIN_S; at the second it ends. Loads
neither torch nor transformers.
"""

import argparse
import logging
import signal
import threading
from types import FrameType

from app import logs
from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.errors import PacelineError
from web.factory import MAX_READERS, create_app
from web.ops.history import HistoryWriter
from web.server import WebServer
from workers.deployment import Deployment, load_tokenizer
from workers.heartbeat import Heartbeat
from workers.recovery import succeed
from workers.template import Life, Template

log = logging.getLogger(__name__)

KIND = "web"
DEFAULT_NAME = "web-1"


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    try:
        settings = Settings.from_env()
        logs.configure(settings.model_copy(update={"node": settings.node or DEFAULT_NAME}))
        tokenizer = load_tokenizer(settings)
        return Template().run(lambda life: _serve(settings, tokenizer, args, life))
    except (PacelineError, OSError) as error:  # no Redis, no model, port taken
        log.error("%s", error)
        return 1


def _serve(settings: Settings, tokenizer: Tokenizer, args: argparse.Namespace, life: Life) -> int:
    """Register this process and serve: new calls until `leaving`, running ones until `stopping`."""
    leaving, stopping = stop_on_signals()
    deployment, name = Deployment.open(settings, tokenizer), settings.node or DEFAULT_NAME
    host: str = args.host
    streams = settings.max_active_requests + MAX_READERS
    server = WebServer(create_app(deployment, stopping, leaving, [host, *args.name]), host, args.port, streams)
    heartbeat = Heartbeat(deployment, KIND, name, owner=life.owner)
    succeed(deployment, KIND, name, life.predecessor)
    heartbeat.begin([deployment.exchange_stats(deployment.counters), HistoryWriter(deployment)])
    log.info("serving on http://%s:%d", host, server.port)
    try:
        server.serve(stopping, leaving, settings.drain_s)
    finally:
        heartbeat.end()
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="web.run", description="Paceline's web server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one")
    parser.add_argument("--name", action="append", default=[], help="that clients call it by, beside PACELINE_HOSTS")
    return parser.parse_args(argv)


def stop_on_signals() -> tuple[threading.Event, threading.Event]:
    """Return two flags: the first signal sets `leaving`, the second `stopping`."""
    leaving, stopping = threading.Event(), threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:
        (stopping if leaving.is_set() else leaving).set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return leaving, stopping


if __name__ == "__main__":
    raise SystemExit(main())
