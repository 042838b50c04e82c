"""Measure what event streams cost the web process when events come at a stated pace.

Runs Redis and one web process, real ones, and commits as verifiers do, over the real commit path,
without a model: so many events a second for each stream. One other process reads all streams and
checks every token. Reports the web process's CPU an event, its commands to Redis, and the time from
the commit to the client's byte; first of all, what the open streams cost while nothing comes.
"""

import argparse
import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from collections.abc import Sequence as Listed
from contextlib import ExitStack, contextmanager
from subprocess import PIPE, Popen
from typing import Any

from app.config import Settings
from app.local.ports import any_free
from app.local.process_specs import services
from app.messages import DrafterCounts, Event, FinishReason, Record, Stats
from app.request import Sampling, SpeculationBounds
from app.store.connect import packed
from app.store.protocol import Outcome
from bench.clients.resource_monitor import cpu_s
from bench.own_redis import own_redis
from bench.report_header import heading
from workers.deployment import Deployment

SETTLE_S = 2.0  # before each measurement
BEAT_S = 1.0
WRITTEN_S = 1234567890.123456  # in the place of the moment at which a commit is sent
_WRITTEN = b"%.6f" % WRITTEN_S
FIRST_ID, IDS = 300, 40_000  # the tokens that are said: any of the vocabulary that are no control tokens
TOKENS = 2  # an event: a draft token and the target's own
PROPOSERS = ("smol-general", "target")


def run(args: argparse.Namespace, argv: Listed[str] | None) -> int:
    """Measure, print, write the figures; return 0 if every stream was whole."""
    report: dict[str, Any] = {**heading("bench streams", argv), "streams": args.streams, "paces": []}
    wrong = 0
    with deployment(args.streams) as (opened, url, web):
        for pace in args.events_per_s:
            found = measure(opened, url, web, pace, args)
            wrong += found["wrong"]
            report["paces"].append(found)
            print(line(found), flush=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if wrong else 0


@contextmanager
def deployment(streams: int) -> Iterator[tuple[Deployment, str, int]]:
    """Start Redis and a web process; yield a connection to them, the web server's URL and its pid."""
    settings = Settings.from_env().model_copy(update={"max_active_requests": streams})
    with ExitStack() as stack:
        supervisor, _, url = stack.enter_context(own_redis("streams"))
        settings = settings.model_copy(update={"redis_url": url})
        opened = Deployment.open(settings)
        stack.callback(opened.close)
        port = any_free()
        web = [service for service in services(settings, port) if service.role == "web"]
        supervisor.start(web, lambda: None if opened.nodes.live("web") else "web")
        yield opened, f"127.0.0.1:{port}", int(opened.nodes.live("web")[0].info["pid"])


def measure(opened: Deployment, url: str, web: int, pace: float, args: argparse.Namespace) -> dict[str, Any]:
    """Hold the streams, first silent and then at this pace."""
    committers = [Committer(opened, args.streams // args.verifiers, pace, args.seconds) for _ in range(args.verifiers)]
    ids = [one for committer in committers for one in committer.ids]
    with Popen([sys.executable, "-m", "bench.clients.stream_reader", url], stdin=PIPE, stdout=PIPE) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        reader.stdin.write(json.dumps(ids).encode() + b"\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == b"open\n"
        time.sleep(SETTLE_S)
        silent = _spent(opened, web, args.silent_s)
        for number, committer in enumerate(committers):
            committer.begin(number / len(committers) / pace)
        time.sleep(SETTLE_S)
        events = sum(committer.events for committer in committers)
        spent = _spent(opened, web, args.seconds)
        events = sum(committer.events for committer in committers) - events
        for committer in committers:
            committer.end()
        read = json.loads(reader.stdout.read())
    for committer in committers:
        committer.close()
    return {
        "streams": len(ids),
        "wanted events a stream and second": pace,
        "events a stream and second": round(events / len(ids) / spent["seconds"], 2),
        "silent": {
            "web share of a core": round(silent["web s"] / silent["seconds"], 4),
            "redis share of a core": round(silent["redis s"] / silent["seconds"], 4),
            "web commands a second": round(silent["commands"] / silent["seconds"], 2),
            "redis connections": silent["connections"],
        },
        "web share of a core": round(spent["web s"] / spent["seconds"], 4),
        "redis share of a core": round(spent["redis s"] / spent["seconds"], 4),
        "web us an event": round(1e6 * spent["web s"] / events, 2),
        "redis us an event": round(1e6 * spent["redis s"] / events, 2),
        "web commands an event": round(spent["commands"] / events, 4),
        "commits that failed": sum(committer.failed for committer in committers),
        **read,
    }


class Committer(threading.Thread):
    """Commit an event to each of its requests at every tick, as one verifier's steps do."""

    def __init__(self, opened: Deployment, requests: int, pace: float, seconds: float) -> None:
        super().__init__(name="committer", daemon=True)
        self._opened, self._tick_s = opened, 1.0 / pace
        self._owner = uuid.uuid4().hex
        self._beat()
        self.ids = [uuid.uuid4().hex for _ in range(requests)]
        for one in self.ids:
            opened.requests.create(record_of(one), limit=sys.maxsize)
            opened.requests.assign(one, self._owner, "stand-in")
        opened.requests.commit(self._owner, [("none", event_of(0, 1, None, 0.0))])  # the server knows the script then
        self._steps = self._write(int(pace * (seconds + 2 * SETTLE_S)) + 2)
        self._begun, self._over = threading.Event(), threading.Event()
        self._delay_s = 0.0
        self.events = self.failed = 0
        self.start()

    def begin(self, delay_s: float) -> None:
        """Commit from `delay_s` on, so that the verifiers' steps do not fall on one moment."""
        self._delay_s = delay_s
        self._begun.set()

    def run(self) -> None:
        """Commit from `begin` to `end`; a tick that comes late is not made up for."""
        while not self._begun.wait(BEAT_S):
            self._beat()
        time.sleep(self._delay_s)
        connection = self._opened.requests._client.connection_pool.get_connection()
        offset, next_s, beaten_s = 0, time.monotonic(), time.monotonic()
        for step in self._steps:
            if self._over.wait(max(0.0, next_s - time.monotonic())):
                break
            next_s = max(next_s + self._tick_s, time.monotonic() - self._tick_s)
            for call in step:
                connection.send_packed_command([call.replace(_WRITTEN, b"%.6f" % time.time())])
            for _ in step:
                self.failed += sum(one != Outcome.COMMITTED for one in connection.read_response()[:-1])
            self.events += len(self.ids)
            offset += TOKENS
            if time.monotonic() - beaten_s > BEAT_S:
                self._beat()
                beaten_s = time.monotonic()
        last = event_of(offset, 1, FinishReason.LENGTH, time.time())
        ends = self._opened.requests.commit(self._owner, [(one, last) for one in self.ids])
        self.failed += sum(one is not Outcome.COMMITTED for one in ends)

    def end(self) -> None:
        """End all requests with their last event."""
        self._over.set()
        self.join()

    def close(self) -> None:
        """Retire the verifier."""
        self._opened.nodes.retire("paced", self._owner, self._owner)

    def _beat(self) -> None:
        self._opened.nodes.beat("paced", self._owner, self._owner, progress_s=time.time(), info={})

    def _write(self, steps: int) -> list[list[bytes]]:
        """Write the commits beforehand as the store does, so that it takes no time from what is measured."""
        store, written = self._opened.requests, []
        for step in range(steps):
            event = event_of(TOKENS * step, step + 1, None, WRITTEN_S)
            calls = store._commit_calls(self._owner, [(one, event) for one in self.ids], "paced")
            written.append([packed("EVALSHA", store._commit.sha, len(keys), *keys, *args) for keys, args in calls])
        return written


def record_of(request_id: str) -> Record:
    """Make a request that goes on as long as it is wanted."""
    return Record(
        id=request_id,
        prompt_ids=(FIRST_ID,),
        max_tokens=2**20,
        eos_ids=(),
        sampling=Sampling(temperature=0.0, seed=0),
        speculation=SpeculationBounds(),
        created_s=time.time(),
    )


def event_of(offset: int, rounds: int, reason: FinishReason | None, written_s: float) -> Event:
    """Make a round's event of TOKENS tokens, as a verifier with drafters would, of this wall clock time."""
    return Event(
        offset=offset,
        tokens=tuple(token_at(offset + i) for i in range(TOKENS)),
        proposers=PROPOSERS,
        finish_reason=reason,
        stats=Stats(
            rounds=rounds,
            drafted=4 * rounds,
            accepted=rounds,
            by_drafter={
                name: DrafterCounts(drafted=2 * rounds, accepted=rounds // 2) for name in ("lookup", "general")
            },
            first_token_s=1.0,
            last_token_s=written_s,
        ),
    )


def token_at(position: int) -> int:
    """Return the token that all streams have at this place of the answer."""
    return FIRST_ID + position * 7919 % IDS


def _spent(opened: Deployment, web: int, seconds: float) -> dict[str, float]:
    """Return what the web process and Redis spent in the next `seconds`."""
    before, began_s = _counts(opened, web), time.monotonic()
    time.sleep(seconds)
    after, took_s = _counts(opened, web), time.monotonic() - began_s
    spent = {name: after[name] - before[name] for name in ("web s", "redis s", "commands")}
    return {**spent, "seconds": took_s, "connections": after["connections"]}


def _counts(opened: Deployment, web: int) -> dict[str, float]:
    client: Any = opened.requests._client
    own = {f"{one[0]}:{one[1]}" for one in _addresses(client)}
    others = [one for one in client.client_list() if one["addr"] not in own]
    info = client.info()
    return {
        "web s": cpu_s(web),
        "redis s": info["used_cpu_user"] + info["used_cpu_sys"],
        "commands": float(sum(int(one["tot-cmds"]) for one in others)),
        "connections": float(info["connected_clients"]),
    }


def _addresses(client: Any) -> Iterator[tuple[str, int]]:
    """Yield the addresses of this process's own connections."""
    pool = client.connection_pool
    for one in [*pool._available_connections, *pool._in_use_connections]:
        if one._sock is not None:
            yield one._sock.getsockname()[:2]


def line(found: dict[str, Any]) -> str:
    """Return a measurement as lines for the terminal."""
    silent, took = found["silent"], found["ms from commit to client"]
    return (
        f"{found['streams']} streams at {found['events a stream and second']:g} events a second each "
        f"(wanted {found['wanted events a stream and second']:g}): web {found['web share of a core']:.2f} of a core, "
        f"{found['web us an event']:.1f} us and {found['web commands an event']:.4f} commands an event; "
        f"Redis {found['redis us an event']:.1f} us; "
        f"from commit to client {took['p50']:.1f} ms, p99 {took['p99']:.1f}; "
        f"{found['wrong']} wrong\n"
        f"     silent: web {silent['web share of a core']:.3f} of a core, "
        f"{silent['web commands a second']:.1f} commands a second, {silent['redis connections']:.0f} connections"
    )
