"""Fixtures: the real application over a real Redis, with a scripted verifier behind it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from flask.testing import FlaskClient

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from tests.models import model_dir
from tests.web.browser import Browser, chromium
from tests.web.doubles import ScriptedVerifier, SilentDeployment
from web.factory import create_app
from web.server import WebServer
from workers.deployment import Deployment

Deploy = Callable[..., Deployment]
TEXT = "Größe matters: 👩‍🚀 flew, naïvely, to 日本.\n\n<script>alert('no')</script> &amp; &lt; done"

CALLING = 'Let me see.<tool_call>[{"name": "get_weather", "arguments": {"city": "Zürich 👩‍🚀"}}, ' + (
    '{"name": "time", "arguments": {}}]</tool_call>'
)


@dataclass(frozen=True)
class Server:
    """Say where a running web server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(model_dir())


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url, max_active_requests=8, max_tokens=500, max_prompt_tokens=2000)


@pytest.fixture
def deploy(redis_client: redis.Redis, settings: Settings, tokenizer: Tokenizer) -> Iterator[Deploy]:
    """Make deployments over an empty Redis, with these changes to the settings."""
    with ExitStack() as stack:

        def deploy(**changes: Any) -> Deployment:
            changed = settings.model_copy(update=changes)
            return stack.enter_context(closing(SilentDeployment.of(changed, tokenizer)))

        yield deploy


@pytest.fixture
def deployment(deploy: Deploy) -> Deployment:
    return deploy()


@pytest.fixture
def verifier(deployment: Deployment, tokenizer: Tokenizer) -> Iterator[ScriptedVerifier]:
    with ScriptedVerifier(deployment, [*tokenizer.encode(TEXT), tokenizer.eos_ids[0]]) as verifier:
        yield verifier


@pytest.fixture
def calling(deployment: Deployment, tokenizer: Tokenizer) -> Iterator[ScriptedVerifier]:
    with ScriptedVerifier(deployment, [*tokenizer.encode(CALLING), tokenizer.eos_ids[0]]) as verifier:
        yield verifier


@pytest.fixture
def client(deployment: Deployment) -> FlaskClient:
    return create_app(deployment).test_client()


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Open one window for all tests: each has a server of its own, so no page sees what another one keeps."""
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def server(deployment: Deployment) -> Iterator[Server]:
    stopping = threading.Event()
    server = WebServer(create_app(deployment, stopping), "127.0.0.1", 0, max_streams=8)
    thread = threading.Thread(target=server.serve, args=(stopping,))
    thread.start()
    yield Server("127.0.0.1", server.port)
    stopping.set()
    thread.join()
