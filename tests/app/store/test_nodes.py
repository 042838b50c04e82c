"""The register of live processes, against a real server."""

import time

import pytest
import redis

from app.policy import Policy
from app.store.keys import Keys
from app.store.nodes import Nodes
from app.store.protocol import Node

LEASE_S = 0.15


@pytest.fixture
def nodes(redis_client: redis.Redis) -> Nodes:
    return Nodes(redis_client, "test", lease_s=LEASE_S)


def test_a_heartbeat_shows_its_process_until_the_lease_ends(nodes: Nodes) -> None:
    info = {"drafter": "lookup", "pid": 7, "nested": {"a": [1, None]}}
    assert nodes.beat("draft", "draft-1", "o1", progress_s=12.5, info=info)
    assert nodes.live() == [Node("draft", "draft-1", "o1", 12.5, info)]
    time.sleep(LEASE_S * 1.5)
    assert nodes.live() == []


def test_the_last_heartbeat_counts(nodes: Nodes) -> None:
    for progress_s in (1.0, 2.0):
        assert nodes.beat("draft", "draft-1", "o1", progress_s=progress_s, info={})
    assert [node.progress_s for node in nodes.live()] == [2.0]


def test_live_selects_by_kind(nodes: Nodes) -> None:
    for kind, name in (("draft", "a"), ("draft", "b"), ("verify", "a"), ("drafting", "a")):
        assert nodes.beat(kind, name, f"{kind}-{name}", progress_s=0.0, info={})
    assert {node.name for node in nodes.live("draft")} == {"a", "b"}
    assert len(nodes.live()) == 4
    assert nodes.live("fuse") == []


def test_a_name_belongs_to_one_live_process(redis_client: redis.Redis, nodes: Nodes) -> None:
    assert nodes.beat("verify", "v", "o1", progress_s=0.0, info={})
    assert not nodes.beat("verify", "v", "o2", progress_s=0.0, info={})
    assert [node.owner for node in nodes.live()] == ["o1"]
    assert not redis_client.exists("test:lease:o2")
    time.sleep(LEASE_S * 1.5)
    assert nodes.beat("verify", "v", "o2", progress_s=0.0, info={})
    assert not nodes.beat("verify", "v", "o1", progress_s=0.0, info={})  # the frozen one wakes
    assert not redis_client.exists("test:lease:o1")


def test_a_retired_process_is_gone_at_once_and_only_it(redis_client: redis.Redis, nodes: Nodes) -> None:
    nodes.beat("verify", "v", "o1", progress_s=0.0, info={})
    nodes.retire("verify", "v", "somebody else")
    assert len(nodes.live()) == 1
    nodes.retire("verify", "v", "o1")
    assert nodes.live() == []
    assert redis_client.keys("*") == []


def test_only_a_newer_policy_replaces_the_old(nodes: Nodes) -> None:
    assert nodes.policy() == Policy()
    new = Policy(version=10, max_draft_tokens=3, draft_wait_s=0.125)
    assert nodes.set_policy(new)
    assert nodes.policy() == new
    assert not nodes.set_policy(Policy(version=9))
    assert not nodes.set_policy(Policy(version=10, max_draft_tokens=4))
    assert nodes.set_policy(new)  # the same again: its first reply may have been lost
    assert nodes.policy() == new
    assert nodes.set_policy(Policy(version=11))


def test_a_lock_is_taken_once_until_the_end_of_its_time(nodes: Nodes) -> None:
    assert nodes.try_lock("steer", 0.05)
    assert not nodes.try_lock("steer", 0.05)
    assert nodes.try_lock("sweep", 0.05)
    time.sleep(0.1)
    assert nodes.try_lock("steer", 0.05)


@pytest.mark.parametrize(
    "lie",
    [
        {"waiting": "many"}, {"waiting": -5}, {"waiting": True}, {"busy": None}, {"drafters": 7}, {"drafters": [None]},
        {"drafters": "lookup"}, {"readers": {}}, {"weights": {"a": 8}}, {"tokenizer": 7}, {"host": []},
        {"sequences": float("nan")}, {"sequences": float("inf")},
    ],
)  # fmt: skip
def test_a_heartbeats_facts_of_another_kind_are_left_out(nodes: Nodes, lie: dict[str, object]) -> None:
    sound = {"waiting": 3, "drafters": ["a"], "busy": 0.5, "else": [1]}
    assert nodes.beat("draft", "liar", "o1", progress_s=0.0, info={**sound, **lie})
    (found,) = nodes.live()
    assert found.info == {name: value for name, value in sound.items() if name not in lie}


def test_a_heartbeat_that_cannot_be_read_shows_no_process(nodes: Nodes, redis_client: redis.Redis) -> None:
    assert nodes.beat("draft", "sound", "o1", progress_s=0.0, info={})
    assert nodes.beat("draft", "liar", "o2", progress_s=0.0, info={})
    for text in ("", "7", "[]", '{"kind": "draft"}', '{"kind": 7, "name": 7, "owner": 7, "progress_s": 0, "info": {}}'):
        redis_client.hset(Keys("test").node("draft", "liar"), "node", text)
        assert [node.name for node in nodes.live()] == ["sound"]
