"""A web process that is frozen while its connections to Redis die: how long its streams are silent then."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest
import redis

from app.store.event_feed import CHECK_S
from tests.app.store.relay import Relay
from tests.models import model_dir
from tests.web.doubles import ScriptedVerifier
from workers.deployment import Deployment

TIMEOUT_S = 1.0  # for a Redis that is silent, in place of five seconds
FROZEN_S = 1.5
WEB = f"import app.store.connect; app.store.connect.SOCKET_TIMEOUT_S = {TIMEOUT_S}; import web.run; web.run.main()"
SLACK_S = 3.0  # a busy machine


@pytest.mark.extended
def test_a_frozen_process_with_dead_connections_is_silent_for_a_bounded_time(
    deployment: Deployment, redis_client: redis.Redis, redis_url: str
) -> None:
    """Nothing ends the connections, and nothing comes: the longest that a silence can take."""
    with Relay(urlsplit(redis_url).port or 0) as relay:
        environment = os.environ | {
            "PACELINE_REDIS_URL": f"redis://127.0.0.1:{relay.port}/0",
            "PACELINE_MODEL": str(model_dir()),
        }
        command = [sys.executable, "-c", WEB, "--port", "0"]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            port = next(int(found[1]) for line in process.stderr if (found := re.search(r"127\.0\.0\.1:(\d+)$", line)))
            threading.Thread(target=process.stderr.read, daemon=True).start()
            tokens = [300 + i % 50 for i in range(490)]
            with (
                ScriptedVerifier(deployment, tokens, pause_s=0.05),
                closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection,
            ):
                body = json.dumps({"prompt": "Hi", "stream": True, "max_tokens": 490})
                connection.request("POST", "/api/generate", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                _until_tokens(response)
                process.send_signal(signal.SIGSTOP)
                relay.mute()
                time.sleep(FROZEN_S)
                process.send_signal(signal.SIGCONT)
                went_on_s, longest_s = time.monotonic(), 0.0
                while time.monotonic() - went_on_s < 2 * TIMEOUT_S + 2 * CHECK_S:
                    began_s = time.monotonic()
                    _until_tokens(response)
                    longest_s = max(longest_s, time.monotonic() - began_s)
            process.kill()
    assert longest_s < 2 * TIMEOUT_S + CHECK_S + SLACK_S


def _until_tokens(response: http.client.HTTPResponse) -> None:
    while line := response.readline():
        if line.startswith(b"event: tokens"):
            return
    raise AssertionError("the stream ended")
