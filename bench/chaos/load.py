"""Inject faults by load: more connections, requests and streams than are usual.

A fault's docstring is its line in `./paceline chaos --list`. Requests and streams are those of `./paceline bench`, in a
process of their own: the threads that time the silences must not wait for them.
"""

import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

from app.config import ROOT
from bench.chaos.deployment import Site

HELD = 100  # slow connections of each kind
HELD_S = 20
HEAD = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
OVERLOAD = "--rate 20 --seconds 120 --max-tokens 48 --arms on"  # two requests a second are served well
# Of 250 requests, which with the clients' are as many as are admitted at once.
STREAMS = "--streams 500 --readers 2 --verifiers 5 --events-per-s 1 --silent-s 1"


def slow_connections(site: Site) -> None:
    """Hold 100 connections that send a head, a byte a second, and 100 that stop within a body."""
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", site.port))) for _ in range(2 * HELD)]
        for one in opened[HELD:]:
            one.sendall(HEAD + b'Content-Length: 1000\r\n\r\n{"prompt": "')
        for sent in range(HELD_S):
            for one in opened[:HELD]:
                with suppress(OSError):  # closed by the server
                    one.sendall(HEAD[sent : sent + 1])
            time.sleep(1.0)


def overload(site: Site) -> None:
    """Send ten times what is served well for two minutes: none that is admitted may fail."""
    _bench(site, "load", "poisson", "--url", f"http://127.0.0.1:{site.port}", *OVERLOAD.split())


def many_streams(site: Site) -> None:
    """Read 500 event streams at once, and check every token."""
    _bench(site, "streams", "--instance", site.instance.name, *STREAMS.split())


def _bench(site: Site, *words: str) -> None:
    """Run a benchmark on the deployment; what it finds wrong is a complaint."""
    out = site.instance.logs / f"bench-{words[0]}.json"
    command = [sys.executable, "-m", "bench", *words, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        site.complaints.append(f"bench {words[0]} found requests or streams that were not whole ({out})\n{done.stderr}")
