"""Look for what a deployment leaves behind once all requests have ended: requests, mail, cache pages, and keys without
a time to live."""

import time
from typing import Any

import redis

from app.store.keys import Keys
from bench.chaos.deployment import Site, mailboxes_of

QUIET_S = 60.0  # within which all must be gone
# Keys that may stay for ever: one small hash, one small index of the live nodes, and the index of mailboxes while mail
# waits for a node that never existed (the mail itself has a time to live).
STANDING = ("policy", "nodes", "mailboxes")


def left_behind(site: Site) -> list[str]:
    """Return a line for each thing left behind; an empty list is right. Wait up to QUIET_S for it to go."""
    deadline = time.monotonic() + QUIET_S
    while (found := _left(site)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def _left(site: Site) -> list[str]:
    keys = Keys(site.deployment.settings.namespace)
    client: Any = redis.Redis.from_url(site.deployment.settings.redis_url or "", decode_responses=True)
    mailboxes = mailboxes_of(site)
    found = [f"{site.deployment.requests.active()} requests still active"] if site.deployment.requests.active() else []
    for name in client.scan_iter(f"{keys.namespace}:*", count=1000):
        short = name.removeprefix(f"{keys.namespace}:")
        if short not in STANDING and client.ttl(name) == -1:
            found.append(f"key {short} has no time to live")
        if short.removeprefix("mail:") in mailboxes:
            found.append(f"{client.llen(name)} items wait in {short}")
    for node in site.deployment.nodes.live("verify"):
        used = int(node.info["cache_tokens"]) - int(node.info["cache_tokens_free"])
        if used or node.info["sequences"]:
            found.append(f"{node.name} keeps {node.info['sequences']} sequences and {used} tokens of cache")
    client.close()
    return found
