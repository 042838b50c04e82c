"""Provide the web tier's real server with a scripted verifier behind it: one for all tests of a file."""

import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing

import pytest

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from paceline import LLM
from tests.models import model_dir
from tests.web.conftest import TEXT, Server
from tests.web.doubles import ScriptedVerifier, SilentDeployment
from tests.workers.cluster import wait_for
from web.factory import create_app
from web.server import WebServer

MOST_ACTIVE = 8


@pytest.fixture(scope="module")
def scripted(redis_url: str) -> Iterator[ScriptedVerifier]:
    tokenizer = Tokenizer(model_dir())
    settings = Settings(redis_url=redis_url, namespace="program", max_active_requests=MOST_ACTIVE)
    answer = [*tokenizer.encode(TEXT), tokenizer.eos_ids[0]]
    with closing(SilentDeployment.of(settings, tokenizer)) as deployment, ScriptedVerifier(deployment, answer) as it:
        yield it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Redis' client leaves a socket to the collector now and then
        gc.collect()


@pytest.fixture
def verifier(scripted: ScriptedVerifier) -> Iterator[ScriptedVerifier]:
    """Provide the verifier as it was at first, without requests."""
    answer = list(scripted.answer)
    scripted.seen.clear()
    yield scripted
    scripted.answer, scripted.fail = answer, None
    scripted.going.set()


@pytest.fixture(scope="module")
def server(scripted: ScriptedVerifier) -> Iterator[Server]:
    stopping = threading.Event()
    server = WebServer(create_app(scripted.deployment, stopping), "127.0.0.1", 0, max_streams=MOST_ACTIVE + 2)
    thread = threading.Thread(target=server.serve, args=(stopping,))
    thread.start()
    yield Server("127.0.0.1", server.port)
    stopping.set()
    thread.join()
    wait_for(lambda: not _threads("waitress"), what="readers of streams that were left")


def _threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


@pytest.fixture
def llm(server: Server, verifier: ScriptedVerifier) -> Iterator[LLM]:
    with LLM(url=server.url) as llm:
        yield llm
