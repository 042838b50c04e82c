"""The real application over a real Redis, with a scripted verifier behind it."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import redis
from flask.testing import FlaskClient

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from tests.models import model_dir
from tests.web.browser import Browser, chromium
from tests.web.doubles import FakeDeployment, ScriptedVerifier
from web.factory import create_app
from web.server import WebServer

TEXT = "Größe matters: 👩‍🚀 flew, naïvely, to 日本.\n\n<script>alert('no')</script> &amp; &lt; done"


@dataclass(frozen=True)
class Server:
    """A running web server on a socket of its own."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(model_dir())


@pytest.fixture
def settings() -> Settings:
    return Settings(max_active_requests=8, max_tokens=500, max_prompt_tokens=2000)


@pytest.fixture
def deployment(redis_client: redis.Redis, settings: Settings, tokenizer: Tokenizer) -> FakeDeployment:
    return FakeDeployment.over(redis_client, settings, tokenizer)


@pytest.fixture
def verifier(deployment: FakeDeployment, tokenizer: Tokenizer) -> Iterator[ScriptedVerifier]:
    with ScriptedVerifier(deployment, [*tokenizer.encode(TEXT), tokenizer.eos_ids[0]]) as verifier:
        yield verifier


@pytest.fixture
def client(deployment: FakeDeployment) -> FlaskClient:
    return create_app(deployment).test_client()


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One window for all tests: each has a server of its own, so nothing that a page keeps reaches another's."""
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def server(deployment: FakeDeployment) -> Iterator[Server]:
    stopping = threading.Event()
    server = WebServer(create_app(deployment, stopping), "127.0.0.1", 0, max_streams=8)
    thread = threading.Thread(target=server.serve, args=(stopping,))
    thread.start()
    yield Server("127.0.0.1", server.port)
    stopping.set()
    thread.join()
