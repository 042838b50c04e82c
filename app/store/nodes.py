"""The deployment's processes: who lives, how far they are, the policy they follow, locks for periodic jobs.

A process is a node (kind + name, stable over restarts) and an owner (random, one life). Its heartbeat
prolongs both.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, cast

import redis

from app.policy import Policy
from app.store.connect import Script
from app.store.keys import Keys


@dataclass(frozen=True, slots=True)
class Node:
    """A live process as its last heartbeat described it."""

    kind: str
    name: str
    owner: str
    progress_s: float  # wall clock of its last progress, which a heartbeat alone is not
    info: dict[str, Any]


class Nodes:
    """The register of live processes."""

    def __init__(self, client: redis.Redis, namespace: str, *, lease_s: float) -> None:
        self._client = client
        self._keys = Keys(namespace)
        self._lease_ms = int(lease_s * 1000)
        self._beat = Script(client, "beat")
        self._live = Script(client, "live")
        self._retire = Script(client, "retire")
        self._policy = Script(client, "policy")

    def beat(self, kind: str, name: str, owner: str, *, progress_s: float, info: dict[str, Any]) -> bool:
        """Say that `owner` lives; False if another live process has this kind and name: then it must stop."""
        keys = [self._keys.node(kind, name), self._keys.nodes, self._keys.lease(owner)]
        node = json.dumps(asdict(Node(kind, name, owner, progress_s, info)))
        return bool(self._beat(keys, [f"{kind}:{name}", owner, node, self._lease_ms]))

    def live(self, kind: str | None = None) -> list[Node]:
        """Processes whose heartbeat has not run out, all or of one kind."""
        prefix = "" if kind is None else f"{kind}:"
        nodes = self._live([self._keys.nodes], [self._keys.node("", "").removesuffix(":"), prefix])
        return [Node(**json.loads(node)) for node in nodes]

    def retire(self, kind: str, name: str, owner: str) -> None:
        """Take a process off the register at its clean end; its leases end at once."""
        keys = [self._keys.node(kind, name), self._keys.nodes, self._keys.lease(owner)]
        self._retire(keys, [f"{kind}:{name}", owner])

    def policy(self) -> Policy:
        """The newest policy; the default one before the first."""
        stored = cast(str | None, self._client.hget(self._keys.policy, "policy"))
        return Policy() if stored is None else Policy.model_validate_json(stored)

    def set_policy(self, policy: Policy) -> bool:
        """Publish a policy; False unless its version is higher than the published one's."""
        return bool(self._policy([self._keys.policy], [policy.version, policy.model_dump_json()]))

    def try_lock(self, name: str, ttl_s: float) -> bool:
        """Take a lock that nobody gives back: it runs out after `ttl_s`."""
        return bool(self._client.set(self._keys.lock(name), "1", nx=True, px=int(ttl_s * 1000)))
