"""`./paceline bench streams`: what hundreds of open event streams cost one web process.

Runs Redis and one web process, real ones, and commits as verifiers do, over the real commit path and without a model:
so many events a second for each stream. One other process reads all streams and checks every token. Reports the web
process's CPU an event, its commands to Redis, the time from the commit to the client's byte, and the time of small
calls meanwhile; whether memory, threads, files or connections grow; and what open streams cost while nothing comes.
"""

import argparse
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from collections.abc import Sequence as Listed
from contextlib import ExitStack, closing, contextmanager, suppress
from subprocess import PIPE, Popen
from typing import Any
from urllib.error import HTTPError

from app.config import Settings
from app.local.instance import Instance, ProcessId, State
from app.local.ports import any_free
from app.local.process_specs import services
from bench.chaos.deployment import enter
from bench.help import count
from bench.help import parser as parser_of
from bench.load.report import spread
from bench.load.watcher import Watcher, cpu_s, grew
from bench.own_redis import own_redis
from bench.report_header import add_out, heading, write_report
from bench.streams.commits import SETTLE_S, Committer
from workers.deployment import Deployment

STORED_S = 10.0  # within which all requests are stored
SMALL_CALLS = ("/healthz", "/v1/models", "/readyz")  # answered by the process alone, without a wait, and with Redis


def main(argv: Listed[str] | None = None) -> int:
    """Measure each pace, print, write the figures; return 0 if every stream was whole and nothing grew."""
    args = parse_args(argv)
    report: dict[str, Any] = {**heading("bench streams", argv), "streams": args.streams, "paces": []}
    with running(args.instance) if args.instance else deployment(args.streams) as (opened, state):
        for pace in args.events_per_s:
            report["paces"].append(measure(opened, state, pace, args))
            print(json.dumps({**report["paces"][-1], "processes": grew(report["paces"][-1]["processes"])}), flush=True)
    write_report(args.out, report)
    is_alone = args.instance is None  # else processes may grow for other reasons
    wrong = [one["wrong"] or one["commits that failed"] for one in report["paces"]]
    return 1 if any(wrong) or is_alone and any(grew(one["processes"]) for one in report["paces"]) else 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench streams", __doc__)
    parser.add_argument("--streams", type=count, default=500, help="open at once")
    parser.add_argument("--readers", type=count, default=1, help="streams of each request")
    parser.add_argument("--events-per-s", type=float, nargs="+", default=[1.0, 20.0], help="of each; one run for each")
    parser.add_argument("--verifiers", type=count, default=4, help="that share the requests, their steps out of phase")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured at each pace")
    parser.add_argument("--silent-s", type=float, default=5.0, help="measured before, while nothing comes")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two samples")
    parser.add_argument("--instance", help="a running one's web process and Redis (default: of its own)")
    add_out(parser, "streams")
    args = parser.parse_args(argv)
    if min(*args.events_per_s, args.seconds, args.silent_s, args.every) <= 0.0:
        parser.error("paces and times are more than 0")
    return args


@contextmanager
def running(name: str) -> Iterator[tuple[Deployment, State]]:
    """Yield a connection to a running instance, and what runs."""
    settings = Settings.from_env()
    site = enter(Instance(settings.state, name), settings, seed=0)
    state = site.instance.running()
    assert state is not None
    with closing(site.deployment):
        yield site.deployment, state


@contextmanager
def deployment(streams: int) -> Iterator[tuple[Deployment, State]]:
    """Start Redis and a web process; yield a connection to them, and what runs."""
    settings = Settings.from_env().model_copy(update={"max_active_requests": streams})
    with ExitStack() as stack:
        supervisor, _, redis_url = stack.enter_context(own_redis("streams"))
        settings = settings.model_copy(update={"redis_url": redis_url})
        opened = Deployment.open(settings)
        stack.callback(opened.close)
        port = any_free()
        web = [service for service in services(settings, port) if service.role == "web"]
        supervisor.start(web, lambda: None if opened.nodes.live("web") else "web")
        process = ProcessId.of(int(opened.nodes.live("web")[0].info["pid"]))
        assert process is not None
        url, name = f"http://127.0.0.1:{port}", settings.namespace
        about = {"url": url, "redis_url": redis_url, "namespace": name, "processes": {"web": (process,)}}
        yield opened, State(instance="streams", supervisor=process, **about)


def measure(opened: Deployment, state: State, pace: float, args: argparse.Namespace) -> dict[str, Any]:
    """Hold the streams, first silent and then at this pace."""
    web, requests = state.processes["web"][0].pid, args.streams // args.readers // args.verifiers
    while not opened.nodes.try_lock("recover", STORED_S):  # else a sweep takes what is stored and not yet assigned
        time.sleep(0.1)
    committers = [Committer(opened, requests, pace, args.seconds) for _ in range(args.verifiers)]
    ids = [one for committer in committers for one in committer.ids for _ in range(args.readers)]
    watcher = Watcher(lambda: state, args.every)
    command = [sys.executable, "-m", "bench.streams.reader", state.url.removeprefix("http://")]
    with Popen(command, stdin=PIPE, stdout=PIPE) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        reader.stdin.write(json.dumps(ids).encode() + b"\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == b"open\n"
        time.sleep(SETTLE_S)
        silent = _spent(opened, web, lambda: time.sleep(args.silent_s))
        for number, committer in enumerate(committers):
            committer.begin(number / len(committers) / pace)
        time.sleep(SETTLE_S)
        calls: dict[str, list[float]] = {path: [] for path in SMALL_CALLS}
        events = sum(committer.events for committer in committers)
        with watcher:
            spent = _spent(opened, web, lambda: _call(state.url, calls, args.seconds, args.every))
        events = sum(committer.events for committer in committers) - events
        for committer in committers:
            committer.end()
        read = json.loads(reader.stdout.read())
    for committer in committers:
        committer.close()
    events *= args.readers
    return {
        "streams": len(ids),
        "readers of a request": args.readers,
        "wanted events a stream and second": pace,
        "events a stream and second": round(events / len(ids) / spent["seconds"], 2),
        "silent": {
            **_shares(silent),
            "web commands a second": round(silent["commands"] / silent["seconds"], 2),
            "redis connections": silent["connections"],
        },
        **_shares(spent),
        "web us an event": round(1e6 * spent["web s"] / events, 2),
        "redis us an event": round(1e6 * spent["redis s"] / events, 2),
        "web commands an event": round(spent["commands"] / events, 4),
        "small calls, s": {path: spread(took_s) for path, took_s in calls.items()},
        "commits that failed": sum(committer.failed for committer in committers),
        **read,
        "processes": watcher.figures("memory", "files", "threads", "connections"),
    }


def _call(url: str, calls: dict[str, list[float]], seconds: float, every_s: float) -> None:
    """Make each small call again and again, and note the seconds that it takes."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for path, took_s in calls.items():
            began_s = time.monotonic()
            with suppress(HTTPError), urllib.request.urlopen(url + path) as answer:  # not ready without a verifier
                answer.read()
            took_s.append(time.monotonic() - began_s)
        time.sleep(max(0.0, min(every_s, until_s - time.monotonic())))


def _spent(opened: Deployment, web: int, meanwhile: Any) -> dict[str, float]:
    """Return what the web process and Redis spent while the call ran."""
    before, began_s = _counts(opened, web), time.monotonic()
    meanwhile()
    after, took_s = _counts(opened, web), time.monotonic() - began_s
    spent = {name: after[name] - before[name] for name in ("web s", "redis s", "commands")}
    return {**spent, "seconds": took_s, "connections": after["connections"]}


def _shares(spent: dict[str, float]) -> dict[str, float]:
    return {f"{name} share of a core": round(spent[f"{name} s"] / spent["seconds"], 4) for name in ("web", "redis")}


def _counts(opened: Deployment, web: int) -> dict[str, float]:
    client: Any = opened.requests._client
    pool = client.connection_pool
    sockets = [one._sock for one in (*pool._available_connections, *pool._in_use_connections) if one._sock is not None]
    own = {"{}:{}".format(*one.getsockname()[:2]) for one in sockets}  # this process's connections
    info = client.info()
    return {
        "web s": cpu_s(web),
        "redis s": info["used_cpu_user"] + info["used_cpu_sys"],
        "commands": float(sum(int(one["tot-cmds"]) for one in client.client_list() if one["addr"] not in own)),
        "connections": float(info["connected_clients"]),
    }


if __name__ == "__main__":
    sys.exit(main())
