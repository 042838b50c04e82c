"""`./paceline bench scale`: what a round costs the host, at any number of requests and any context.

Runs a real deployment (Redis, verifier, control, fuser) of its own around a target that only takes a
stated time and says known texts, with a drafter that is right at a stated rate. One reader drains the
events and checks every token. Reports, by number of requests, context and draft length: the exposed
time of a round (from a step's end to the next one's launch), CPU and trips to Redis by process, what Redis does,
tokens/s, and their share of what the step's time alone would allow.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence as Listed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from app.config import Settings
from app.errors import NotFound
from app.local.process_specs import services
from app.messages import FinishReason, Record
from app.store.keys import Keys
from bench.help import parser as parser_of
from bench.own_redis import own_redis, redis_counts
from bench.records import record_of
from bench.report_header import add_out, heading, write_report
from bench.scale.stand_in import FIRST_ID, token_at
from bench.scale.worker import StandIn
from workers.deployment import Deployment

ROLES = ("control", "fuse", "verify")
RESERVE = 4096  # tokens a request may grow by while it is measured
DRAIN_S = 0.1
COUNTED = ("at_s", "cpu_s", "trips", "steps")


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: so many requests of so long a context, with drafts of so many tokens."""

    requests: int
    context: int
    drafts: int


def main(argv: Listed[str] | None = None) -> int:
    """Measure every point, print, write the figures; return 0 if every token was the known one."""
    args = parse_args(argv)
    report: dict[str, Any] = {**heading("bench scale", argv), "points": []}
    for drafts in args.drafts:
        for context in args.contexts:
            with deployment(args, context, drafts) as (opened, folder):
                for requests in args.requests:
                    point = Point(requests, context, drafts)
                    found = measure(opened, folder, point, args)
                    report["points"].append(found)
                    print(json.dumps(found), flush=True)
    write_report(args.out, report)
    return 1 if any(point["wrong"] for point in report["points"]) else 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench scale", __doc__)
    parser.add_argument("--step-ms", type=float, default=5.0, help="time of a target step, whatever is in it")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64], help="at work at once")
    parser.add_argument("--contexts", type=int, nargs="+", default=[100], help="prompt tokens of each request")
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 4], help="tokens of each draft; 0: plain rounds")
    parser.add_argument("--rate", type=float, default=0.7, help="of draft tokens that are right")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured for each point")
    add_out(parser, "scale")
    args = parser.parse_args(argv)
    if min(*args.requests, *args.contexts, args.step_ms, args.seconds) <= 0 or min(args.drafts) < 0:
        parser.error("numbers and times are more than 0")
    if not 0.0 <= args.rate <= 1.0:
        parser.error("--rate is a part of 1")
    return args


@contextmanager
def deployment(args: argparse.Namespace, context: int, drafts: int) -> Iterator[tuple[Deployment, Path]]:
    """Start Redis and workers around the stand-in; yield a connection, and the folder of their measurements."""
    most = max(args.requests)
    settings = Settings.from_env().model_copy(
        update={
            "drafters": (),
            "phrases": "none",
            "lengths": f"fixed:{drafts}",
            "max_sequences": most,
            "max_active_requests": 2 * most,
        }
    )
    with ExitStack() as stack:
        supervisor, folder, url = stack.enter_context(own_redis("scale"))
        longest = context + RESERVE
        tokens = longest + most * (RESERVE + 64)  # all share the prompt's pages
        given = StandIn(str(folder), args.step_ms / 1e3, args.rate, tokens, longest)
        settings = settings.model_copy(update={"redis_url": url})
        opened = Deployment.open(settings)
        stack.callback(opened.close)
        wanted = [
            replace(
                service,
                argv=(sys.executable, "-m", "bench.scale.worker", given.dumps(), *service.argv[3:]),
            )
            for service in services(settings, 0)
            if service.role in ROLES
        ]
        roles = {service.role for service in wanted}
        supervisor.start(wanted, lambda: ", ".join(roles - {node.kind for node in opened.nodes.live()}) or None)
        yield opened, folder


def measure(opened: Deployment, folder: Path, point: Point, args: argparse.Namespace) -> dict[str, Any]:
    """Run the requests, and measure once all of them are at work."""
    prompt = [FIRST_ID + i % 97 for i in range(point.context)]
    records = [
        record_of(prompt, RESERVE - 64, seed=number, speculates=point.drafts > 0) for number in range(point.requests)
    ]
    _start(opened, records[0])  # its pages are then there for all
    reader = Reader(opened, [record.id for record in records], point.context)
    reader.until(1)
    for record in records[1:]:
        _start(opened, record)
    reader.until(point.requests)
    reader.drain(1.0)  # mailboxes and estimates settle
    client = opened.requests._client
    before, then, tokens, began_s = _spent(folder), redis_counts(client), reader.tokens, time.monotonic()
    reader.drain(args.seconds)
    after, now, took_s = _spent(folder), redis_counts(client), time.monotonic() - began_s
    tokens = reader.tokens - tokens
    for record in records:
        with suppress(NotFound):
            opened.requests.end(record.id, FinishReason.CANCELLED)
    spent = {role: {name: after[role][name] - before[role][name] for name in COUNTED} for role in ROLES}
    steps, seconds_steps = spent["verify"]["steps"], spent["verify"]["at_s"]
    rounds = steps * point.requests
    exposed_s = after["verify"]["exposed_s"][-steps:]
    per_round = 1e6 / rounds
    pace = tokens / took_s
    tokens_a_round = pace * seconds_steps / rounds
    result = {
        "requests": point.requests,
        "context": point.context,
        "drafts": point.drafts,
        "step_ms": args.step_ms,
        "rounds": steps,
        "wrong": reader.wrong,
        "tokens_per_s": round(pace, 1),
        "tokens_a_round": round(tokens_a_round, 3),
        "ideal": round(args.step_ms / 1e3 * steps / seconds_steps, 3),  # of tokens/s with a host that costs nothing
        "exposed_ms": round(1e3 * median(exposed_s), 3),
        "exposed_mean_ms": round(1e3 * (seconds_steps / steps) - args.step_ms, 3),
        "cpu_us": {role: round(own["cpu_s"] * per_round, 1) for role, own in spent.items()},
        "trips_a_round": {role: round(own["trips"] / steps, 2) for role, own in spent.items()},
        "redis": {name: round((now[name] - then[name]) / rounds, 3) for name in ("commands", "bytes in", "bytes out")}
        | {"cpu us": round(per_round * (now["cpu s"] - then["cpu s"]), 3)},
    }
    while opened.requests.active():  # the next point begins with an idle verifier
        time.sleep(0.1)
    time.sleep(1.5)
    return result


class Reader:
    """Drain the requests' events, all in one thread, and compare each token with the known one."""

    def __init__(self, opened: Deployment, ids: Listed[str], context: int) -> None:
        keys = Keys(opened.settings.namespace)
        self._client = opened.requests._client  # all streams in one call, which no client does
        self._at: Any = {keys.events(one): "0-0" for one in ids}
        self._known = {keys.events(one): one for one in ids}
        self._context = context
        self._seen: dict[str, int] = dict.fromkeys(self._at, 0)
        self.wrong = 0

    @property
    def tokens(self) -> int:
        """Return the tokens read so far."""
        return sum(self._seen.values())

    def until(self, requests: int, longest_s: float = 300.0) -> None:
        """Drain until so many requests have begun. Raises TimeoutError."""
        until_s = time.monotonic() + longest_s
        while sum(count > 0 for count in self._seen.values()) < requests:
            if time.monotonic() > until_s:
                raise TimeoutError(f"{requests} requests have not begun within {longest_s:.0f} s")
            self.drain(DRAIN_S)

    def drain(self, seconds: float) -> None:
        """Read what comes in the next seconds, ten times a second."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0.0:
            time.sleep(min(left_s, DRAIN_S))
            replies: Any = self._client.xread(self._at) or []
            for stream, entries in replies:
                for entry, fields in entries:
                    self._at[stream] = entry
                    self._check(stream, json.loads(fields["event"]))

    def _check(self, stream: str, event: dict[str, Any]) -> None:
        first = self._context + self._seen[stream]
        tokens = event.get("tokens", [])
        known = [token_at(self._known[stream], first + i) for i in range(len(tokens))]
        self.wrong += tokens != known or event["offset"] != self._seen[stream]
        self._seen[stream] += len(tokens)


def _start(opened: Deployment, record: Record) -> None:
    opened.requests.create(record, limit=sys.maxsize)
    opened.place(record.id)


def _spent(folder: Path) -> dict[str, Any]:
    return {role: json.loads((folder / f"{role}.json").read_text()) for role in ROLES}


if __name__ == "__main__":
    sys.exit(main())
