"""Test the chaos command in its short form over the shared deployment, and that it detects faults."""

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from app.local.instance import Instance
from app.request import GenerateRequest
from bench.chaos import checks
from bench.chaos.checks import left_behind
from bench.chaos.deployment import Site, runs
from bench.chaos.faults import FAULTS
from bench.chaos.report import DRAIN_S, broken
from bench.chaos.run import parse_args, plan, storm
from tests.workers.cluster import Cluster
from tests.workers.records import task_record
from workers.deployment import Deployment

SHORT = (
    "kill verify",
    "kill redis",
    "cut connections",
    "garbage",
    "stale and foreign",
    "broken tasks",
    "lies",
    "ring all",
)


def test_every_request_ends_once_with_its_own_text_under_any_fault(cluster: Cluster, deployment: Deployment) -> None:
    site = Site(Instance(cluster.state, cluster.name), deployment, random.Random(0))
    texts = [GenerateRequest(prompt="Tell me", raw=True, max_tokens=80, temperature=0.8, seed=i) for i in range(6)]
    found = storm(site, texts, ((0.3, fault) for fault in SHORT), clients=4, gap_s=0.5, seed=0)
    assert not broken(found)
    assert found["requests"]["right"] > 6 and [one["fault"] for one in found["faults"]] == [*SHORT]


def test_a_client_waiting_long_after_a_fault_is_a_broken_promise() -> None:
    one = {"fault": "kill web", "ready_s": 2.0, "moved_s": 2.0 + DRAIN_S}
    report = {"requests": {"wrong": [], "failed": [], "lost": []}, "left behind": [], "faults": [one]}
    assert broken(report) == ["kill web: 120 s later some client had got nothing yet"]
    assert not broken({**report, "faults": [{**one, "moved_s": 40.0}]})


@pytest.mark.parametrize("what", ["wrong", "failed", "lost"])
def test_wrong_ends_and_leftovers_are_broken_promises(what: str) -> None:
    kept = {"requests": {"wrong": [], "failed": [], "lost": []}, "left behind": [], "faults": []}
    assert broken({**kept, "requests": {**kept["requests"], what: ["request 7"]}}) == [f"{what}: request 7"]
    assert broken({**kept, "left behind": ["a key"]}) == ["a key"]


@pytest.fixture
def lone_site(lone_deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Look once at a Redis without any process at work."""
    monkeypatch.setattr(checks, "QUIET_S", 0.0)
    return Site(Instance(tmp_path, "lone"), lone_deployment, random.Random(0))


def _verifier(deployment: Deployment, used: int, sequences: int) -> None:
    info = {"cache_tokens": 640, "cache_tokens_free": 640 - used, "sequences": sequences}
    assert deployment.nodes.beat("verify", "v", "owner", progress_s=0.0, info=info)


LEFT: dict[str, tuple[Callable[[Deployment], object], str]] = {
    "a request": (lambda deployment: deployment.requests.create(task_record("a"), limit=9), "1 requests still active"),
    "mail of all": (lambda deployment: deployment.mailboxes.post("fuse", ["{}"]), "1 items wait in mail:fuse"),
    "pages": (lambda deployment: _verifier(deployment, 32, 0), "v keeps 0 sequences and 32 tokens of cache"),
    "a sequence": (lambda deployment: _verifier(deployment, 0, 1), "v keeps 1 sequences and 0 tokens of cache"),
}


@pytest.mark.parametrize("what", LEFT)
def test_whatever_is_left_behind_is_seen(lone_site: Site, what: str) -> None:
    _verifier(lone_site.deployment, 0, 0)
    assert left_behind(lone_site) == []
    leave, seen = LEFT[what]
    leave(lone_site.deployment)
    assert seen in left_behind(lone_site)


def test_keys_without_a_life_time_and_mail_of_one_node_are_seen(lone_site: Site, redis_client: redis.Redis) -> None:
    _verifier(lone_site.deployment, 0, 0)
    lone_site.deployment.mailboxes.post("verify:v", ["{}", "{}"])
    redis_client.set("paceline:odd", "1")
    redis_client.set("theirs:odd", "1")
    assert sorted(left_behind(lone_site)) == ["2 items wait in mail:verify:v", "key odd has no time to live"]


def test_a_key_deleted_in_time_is_not_left_behind(
    lone_site: Site, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "QUIET_S", 20.0)
    redis_client.set("paceline:odd", "1")
    going = threading.Timer(0.3, redis_client.delete, ("paceline:odd",))
    going.start()
    assert left_behind(lone_site) == []
    going.join()


def test_a_zombie_process_does_not_count_as_running() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert runs(child.pid) and runs(os.getpid())
        child.kill()
        deadline = time.monotonic() + 10.0
        while runs(child.pid):
            assert time.monotonic() < deadline, "it is a zombie"
    assert not runs(child.pid) and not runs(None)


def test_the_same_seed_gives_the_same_random_faults() -> None:
    first, second, other = ([*_some(seed)] for seed in ("1", "1", "2"))
    assert first == second != other
    assert {fault for _, fault in first} <= FAULTS.keys()


def _some(seed: str) -> list[tuple[float, str]]:
    drawn = plan(parse_args(["--minutes", "1", "--seed", seed]))
    return [next(drawn) for _ in range(20)]
