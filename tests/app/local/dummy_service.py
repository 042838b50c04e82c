"""Run `python dummy_service.py ROLE NAME PORT`: send heartbeats like a worker; as `web`, answer HTTP."""

import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

from app.config import Settings
from app.store.connect import connect
from app.store.nodes import Nodes


class Ready(BaseHTTPRequestHandler):
    """Answer 200 at every path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def main(role: str, name: str, port: int) -> None:
    settings = Settings.from_env()
    assert settings.redis_url is not None
    if role == "web":
        threading.Thread(target=HTTPServer(("127.0.0.1", port), Ready).serve_forever, daemon=True).start()
    nodes = Nodes(connect(settings.redis_url), settings.namespace, lease_s=settings.lease_s)
    owner = f"{os.getpid()}"
    while True:
        nodes.beat(role, name, owner, progress_s=time.time(), info={})
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
