"""Put tasks and envelopes that are none into Celery's queues, as one who has the Redis password can."""

import base64
import itertools
import json
import time
import uuid
from collections import Counter
from contextlib import suppress
from typing import Any

from celery.exceptions import TimeoutError as NoResult
from celery.result import AsyncResult

from bench.chaos.deployment import Site, client, mailboxes_of
from bench.doors.cases import CANARY
from workers.celery_app import ATTEND, GENERATE, STEER, control_queue, mailbox_queue, public_queues

Found = tuple[Counter[str], list[str]]
RESULT_S = 60.0
DOORBELLS = 2000
SOUND = {"prompt": f"Name a bird. {CANARY}", "max_tokens": 2}
WRONG: tuple[dict[str, Any], ...] = (
    {"max_tokens": -1}, {"max_tokens": "many"}, {"max_tokens": 1e40}, {"temperature": float("nan")},
    {"top_p": []}, {"prompt": "\ud800"}, {"stop": 7}, {"logit_bias": {"x": 1}}, {"allowed_token_ids": [-1]},
    {"unknown": 1}, {"messages": []}, {"seed": 2**70}, {"stop": [""] * 9}, {"self": 1}, {"task_id": "a"},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "file:///etc/passwd"}}}},
)  # fmt: skip
ARGUMENTS: tuple[tuple[list[Any], dict[str, Any]], ...] = (
    ([], {}),
    ([1], {}),
    (["a", "b"], {}),
    (["a", "b", "c"], {}),
    ([None], {}),
    ([[1, None]], {}),
    ([[{"prompt": "a"}, 7]], {}),
    ([{"text": 7, "token_ids": 7}], {}),
    (["a"], {"prompt": 7}),
    *(([], SOUND | more) for more in WRONG),
)
NAMES = ("a\nb", "\x1b[2J", "x" * 5000, "*", "../../etc/passwd", " ", "ü", "a:b", "{}", "%s%n")
BODIES = (b"", b"{", b"[]", b"null", b"[[],{}]", b"[[],{},{}]", b"[7,7,7]", b'[{},[],"x"]', b"[" * 100_000, b"\xff\xfe")
LIES: tuple[dict[str, Any], ...] = (  # instead of a sound envelope's parts; None: without it
    {"body": None},
    {"body": "*** no base64"},
    {"body": 7},
    {"headers": None},
    {"headers": []},
    {"headers": {}},
    {"properties": None},
    {"properties": {}},
    {"content-type": "application/x-yaml"},
    {"content-type": "application/x-msgpack"},
    {"content-type": "application/none"},
    {"content-type": 7},
    {"content-encoding": "none"},
)
RINGS: tuple[list[Any], ...] = ([], [7], [{}], [["x"]], ["draft:nobody"], ["x" * 5000], ["a", "b"], [CANARY])
KINDS: tuple[Any, ...] = (7, [], {}, "soon", -1e300)
HEADERS: tuple[dict[str, Any], ...] = tuple(
    {name: wrong}
    for name in ("id", "task", "eta", "expires", "retries", "timelimit", "kwargsrepr", "root_id", "group")
    for wrong in KINDS
)


def odd_tasks(site: Site) -> Found:
    """Send tasks with wrong arguments, which fail, and with odd ids, which do not."""
    found, broken, sent = Counter[str](), list[str](), list[tuple[str, str, AsyncResult[Any]]]()
    app, queue = site.deployment.celery, site.deployment.settings.queue
    for args, kwargs in ARGUMENTS:
        sent.append((repr((args, kwargs))[:80], "FAILURE", app.send_task(GENERATE, args, kwargs, queue=queue)))
    for name in NAMES:
        one = app.send_task(GENERATE, [], SOUND, queue=queue, task_id=f"{name}{uuid.uuid4().hex[:8]}")
        sent.append((f"id {name[:20]!r}", "SUCCESS", one))
    until_s = time.monotonic() + RESULT_S
    for what, wanted, result in sent:
        with suppress(NoResult):
            result.get(timeout=max(0.1, until_s - time.monotonic()), propagate=False)
        found[result.state] += 1
        if result.state != wanted:
            broken.append(f"{what} ended as {result.state}, not {wanted}")
    return found, broken


def envelopes(site: Site) -> Found:
    """Put damaged envelopes into every queue; a pickle among them would make a file."""
    redis, proof = client(site), site.instance.folder / "pwned"
    every, found = _queues(site), Counter[str]()
    for queue in every:
        for number, envelope in enumerate(damaged(queue, str(proof))):
            redis.lpush(queue, envelope if number % 2 else envelope.encode())
            found["sent"] += 1
        for args in RINGS:
            site.deployment.celery.send_task(ATTEND, args=args, queue=queue, ignore_result=True)
        for name in (ATTEND, STEER):
            site.deployment.celery.send_task(name, ["x"], {"self": 1}, queue=queue, ignore_result=True)
        site.deployment.celery.send_task(f"paceline.{CANARY}", queue=queue, ignore_result=True)
        found["sent"] += len(RINGS) + 3
    broken = _left(site, every)
    if proof.exists():
        proof.unlink()
        broken.append("a pickle was executed")
    return found, broken


def ring_at_once(site: Site) -> Found:
    """Ring the mailboxes' doorbells DOORBELLS times."""
    for mailbox in itertools.islice(itertools.cycle(mailboxes_of(site)), DOORBELLS):
        site.deployment.ring(mailbox)
    return Counter({"sent": DOORBELLS}), _left(site, _queues(site))


def damaged(queue: str, proof: str) -> list[str]:
    """Make the envelopes for a queue."""
    evil = f"cio\nopen\n(V{proof}\nVw\ntR.".encode()  # a pickle by hand: open(proof, "w")
    kinds = {"content-type": "application/x-python-serialize", "content-encoding": "binary"}
    yaml = f"!!python/object/apply:builtins.open [{proof!r}, w]".encode()
    made = [
        _envelope(queue, evil, kinds),
        _envelope(queue, evil, {}),
        _envelope(queue, evil, {"content-type": "pickle"}),
    ]
    made.append(_envelope(queue, yaml, {"content-type": "application/x-yaml"}))
    made += [_envelope(queue, body, {}) for body in BODIES]
    made += [_envelope(queue, _sound(), lie) for lie in LIES]
    made += [_envelope(queue, _sound(), {"headers": _headers() | wrong}) for wrong in HEADERS]
    return [*made, "", "{", "null", "[]", "\x00", "[" * 100_000, '{"body": ' * 1000, "9" * 5000]


def _sound() -> bytes:
    return json.dumps([[], SOUND, {}]).encode()


def _headers() -> dict[str, Any]:
    return {"lang": "py", "task": GENERATE, "id": uuid.uuid4().hex, "retries": 0, "ignore_result": True}


def _envelope(queue: str, body: bytes, lies: dict[str, Any]) -> str:
    properties = {
        "correlation_id": uuid.uuid4().hex,
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": uuid.uuid4().hex,
    }
    sound = {
        "body": base64.b64encode(body).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": _headers(),
        "properties": properties,
    }
    return json.dumps({name: value for name, value in (sound | lies).items() if value is not None})


def _queues(site: Site) -> list[str]:
    settings = site.deployment.settings
    private = {mailbox_queue(settings, mailbox) for mailbox in mailboxes_of(site)}
    return sorted({*public_queues(settings).values(), control_queue(settings), *private})


def _left(site: Site, queues: list[str]) -> list[str]:
    """Wait until the queues are empty."""
    redis, until_s = client(site), time.monotonic() + RESULT_S
    while left := {queue: redis.llen(queue) for queue in queues if redis.llen(queue)}:
        if time.monotonic() > until_s:
            return [f"{count} items wait in {queue}" for queue, count in left.items()]
        time.sleep(0.1)
    return []
