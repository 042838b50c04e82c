"""Test the logs of a whole deployment: JSON lines of each request's course, without prompts and answers."""

import json
import signal
import urllib.error
from typing import Any

import pytest
from celery import Celery

from app.request import GenerateRequest
from tests.workers.cluster import Cluster, wait_for
from workers.celery_app import control_queue

SECRET = "zanzibarquince"
ROLES = ("web", "control", "fuse", "draft", "verify", "beat")


def lines(cluster: Cluster, role: str) -> list[dict[str, Any]]:
    """Return what the role's processes have logged, without the supervisor's lines, which begin with dashes."""
    return [json.loads(line) for line in cluster.log(role).splitlines() if not line.startswith("-- ")]


def test_no_log_holds_a_prompt_or_an_answer(cluster: Cluster, client: Celery) -> None:
    answers = []
    request = GenerateRequest(prompt=f"Tell of {SECRET}", max_tokens=40, temperature=0.9, seed=3)
    stream = cluster.stream(request).read()
    answers.append(stream.text)
    task = client.send_task("paceline.generate", kwargs={"prompt": SECRET, "max_tokens": 20, "seed": 4})
    answers.append(task.get(timeout=60)["text"])
    wrong = ({"prompt": SECRET, "max_tokens": -1}, {"prompt": SECRET, "messages": SECRET}, {SECRET: SECRET})
    for body in wrong:
        with pytest.raises(urllib.error.HTTPError):
            cluster.post(body)
        with pytest.raises(ValueError):
            client.send_task("paceline.generate", kwargs=body).get(timeout=60)
    queues = ("celery", control_queue(cluster.settings()))
    dropped = sum(_dropped(cluster, role) for role in ROLES)
    for queue in queues:
        client.send_task("paceline.generat", kwargs={"prompt": SECRET}, queue=queue)
        client.send_task("paceline.generate", kwargs={"prompt": SECRET}, queue=queue, eta=None, headers={"eta": SECRET})
    wait_for(lambda: sum(_dropped(cluster, role) for role in ROLES) >= dropped + len(queues), 20, "the dropped tasks")

    for log in (cluster.state / cluster.name / "logs").iterdir():
        text = log.read_text(errors="replace")
        assert SECRET not in text, log
        for answer in answers:
            part = answer[:12]
            assert len(part) == 12 and part not in text and json.dumps(part)[1:-1] not in text, log
    for role, first in {"web": "admitted", "verify": "length"}.items():
        assert any(
            line.get("request_id") == stream.id and line["message"].startswith(first) for line in lines(cluster, role)
        )


def test_a_process_that_is_stopped_leaves_with_a_line_of_json(cluster: Cluster) -> None:
    gone = cluster.signal("fuse", signal.SIGTERM)
    cluster.await_restart("fuse", gone)
    assert "leaving" in [line["message"] for line in lines(cluster, "fuse")]


def test_every_line_is_json_with_its_node(cluster: Cluster) -> None:
    for role in ROLES:
        for line in lines(cluster, role):
            assert {"time", "level", "logger", "message", "node"} <= line.keys() and line["node"] == f"{role}-1"


def _dropped(cluster: Cluster, role: str) -> int:
    return cluster.log(role).count("dropped a task")
