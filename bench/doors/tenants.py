"""Ask as one tenant for another's requests, and past a key's limits."""

import json
import re
from collections import Counter
from typing import Any

from bench.doors.cases import CANARY, call
from bench.doors.wire import at_once, body_of, exchange, status_of

RATE, CONCURRENT, CALLS = 20, 2, 40
KEYS: dict[str, dict[str, Any]] = {
    "admin": {},
    "owner": {},
    "stranger": {},
    "hasty": {"rate_per_minute": RATE},
    "greedy": {"concurrent": CONCURRENT},
}
Found = tuple[Counter[int], list[str]]


def other_tenants(port: int, keys: dict[str, str]) -> Found:
    """A request of another tenant is answered as an unknown one is, byte for byte."""
    mine, theirs = _key(keys["owner"]), _key(keys["stranger"])
    name = json.loads(body_of(exchange(port, _submit(mine, 400))))["id"]
    statuses, broken = Counter[int](), list[str]()
    for method, end in (("GET", ""), ("GET", "/stream"), ("DELETE", "")):
        seen, unknown = (
            exchange(port, call(method, f"/api/requests/{one}{end}", b"", theirs)) for one in (name, "0" * len(name))
        )
        statuses.update(map(status_of, (seen, unknown)))
        if status_of(seen) != 404 or _undated(seen) != _undated(unknown):
            broken.append(f"{method} {end}: another tenant's request is not answered as an unknown one")
    own = exchange(port, call("DELETE", f"/api/requests/{name}", b"", mine))
    statuses[status_of(own)] += 1
    if b'"cancelled"' not in body_of(own):
        broken.append(f"the owner's own DELETE found {body_of(own)[:200]!r}")
    return statuses, broken


def limits(port: int, keys: dict[str, str]) -> Found:
    """A key's limits hold under parallel calls, whatever address they claim."""
    statuses, broken = Counter[int](), list[str]()
    for name, most, tokens in (("hasty", RATE, 1), ("greedy", CONCURRENT, 400)):
        calls = [(str(i), _submit(_key(keys[name]) | {"X-Forwarded-For": f"9.9.9.{i}"}, tokens)) for i in range(CALLS)]
        answers = [answer for _, answer in at_once(port, calls, CALLS)]
        seen = Counter(map(status_of, answers))
        if seen != {202: most, 429: CALLS - most}:
            broken.append(f"{name}: {most} of {CALLS} may be let in; answers were {dict(seen)}")
        statuses += seen
        for answer in answers:
            if status_of(answer) == 202:
                path = json.loads(body_of(answer))["url"]
                statuses[status_of(exchange(port, call("DELETE", path, b"", _key(keys[name]))))] += 1
    return statuses, broken


def _key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _submit(headers: dict[str, str], max_tokens: int) -> bytes:
    body = {"prompt": f"Count to a thousand. {CANARY}", "max_tokens": max_tokens, "wait": False}
    return call("POST", "/api/generate", json.dumps(body).encode(), headers)


def _undated(answer: bytes | None) -> bytes:
    return re.sub(rb"\r\nDate: [^\r]*", b"", answer or b"")
