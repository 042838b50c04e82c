"""Put TLS before a server: certificates made by openssl, and a relay that speaks TLS to its clients.

The server that the tests start is built without TLS; the handshake, the checks and the bytes on the wire are the same.
"""

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate for this machine that is its own authority; return its file and its key's."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here")
    made, key = folder / f"{name}.pem", folder / f"{name}.key"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=localhost", "-addext", NAMES, "-out", str(made), "-keyout", str(key)]
    subprocess.run([openssl, *words], check=True, capture_output=True)
    return made, key


@contextmanager
def by_tls(port: int, made: Path, key: Path) -> Iterator[int]:
    """Yield a port at which TLS leads to `port`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_serve, args=(listening, context, port), daemon=True).start()
        yield int(listening.getsockname()[1])


def _serve(listening: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with suppress(OSError):
        while True:
            near, _ = listening.accept()
            threading.Thread(target=_relay, args=(near, context, port), daemon=True).start()


def _relay(plain: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with (
        suppress(OSError),
        context.wrap_socket(plain, server_side=True) as near,
        socket.create_connection(("127.0.0.1", port)) as far,
    ):
        threading.Thread(target=_pass_on, args=(far, near), daemon=True).start()
        _pass_on(near, far)


def _pass_on(of: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while data := of.recv(65536):
            to.sendall(data)
    with suppress(OSError):
        to.shutdown(socket.SHUT_RDWR)
