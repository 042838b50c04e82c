"""Register the deployment's live processes; keep their policy, and locks for periodic jobs.

A process is a node (kind and name, stable over restarts) and an owner (random, one life); its heartbeat prolongs both.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, cast

import redis

from app.policy import Policy
from app.store.connect import Script
from app.store.keys import Keys
from app.store.protocol import Node


class Nodes:
    """Any thread may call; every method raises StoreUnavailable."""

    def __init__(self, client: redis.Redis, namespace: str, *, lease_s: float) -> None:
        self._client = client
        self._keys = Keys(namespace)
        self._lease_ms = int(lease_s * 1000)
        self._beat = Script(client, "beat")
        self._live = Script(client, "live")
        self._retire = Script(client, "retire")
        self._policy = Script(client, "policy")

    def beat(self, kind: str, name: str, owner: str, *, progress_s: float, info: dict[str, Any]) -> bool:
        """Prolong the owner's lease; False if another live process has this name.

        `progress_s`: wall clock of its last progress.
        """
        keys = [self._keys.node(kind, name), self._keys.nodes, self._keys.lease(owner)]
        node = json.dumps(asdict(Node(kind, name, owner, progress_s, info)))
        return bool(self._beat(keys, [f"{kind}:{name}", owner, node, self._lease_ms]))

    def live(self, kind: str | None = None) -> list[Node]:
        prefix = "" if kind is None else f"{kind}:"
        nodes = self._live([self._keys.nodes], [self._keys.node("", "").removesuffix(":"), prefix])
        return [node for text in nodes if (node := _node(text)) is not None]

    def retire(self, kind: str, name: str, owner: str) -> None:
        keys = [self._keys.node(kind, name), self._keys.nodes, self._keys.lease(owner)]
        self._retire(keys, [f"{kind}:{name}", owner])

    def policy(self) -> Policy:
        stored = cast(str | None, self._client.hget(self._keys.policy, "policy"))
        return Policy() if stored is None else Policy.model_validate_json(stored)

    def set_policy(self, policy: Policy) -> bool:
        """Publish a policy; False unless its version is the highest."""
        return bool(self._policy([self._keys.policy], [policy.version, policy.model_dump_json()]))

    def try_lock(self, name: str, ttl_s: float) -> bool:
        """Take a lock, which only expires."""
        return bool(self._client.set(self._keys.lock(name), "1", nx=True, px=int(ttl_s * 1000)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_texts_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


# A drafter is not trusted: a fact that is not of this kind is left out, as if it had not been sent.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "sequences": _is_number,
    "waiting": _is_number,
    "busy": _is_number,
    "drafters": _are_texts,
    "readers": _are_texts,
    "weights": _are_texts_by_name,
    "tokenizer": _is_text,
    "host": _is_text,
}


def _node(text: str) -> Node | None:
    try:
        sent = json.loads(text)
        node = Node(sent["kind"], sent["name"], sent["owner"], float(sent["progress_s"]), sent["info"])
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(node.info, dict) or not all(map(_is_text, (node.kind, node.name, node.owner))):
        return None
    return replace(node, info={name: one for name, one in node.info.items() if _KINDS.get(name, _any)(one)})


def _any(_: Any) -> bool:
    return True
