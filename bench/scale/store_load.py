"""`./paceline bench store`: how many tokens a second one Redis carries.

Starts a Redis as `./paceline up` does, with its append-only file, and commits as verifiers do: steps of
a stated number of sequences, one step under way for each verifier, every commit the one that the real
store writes. They are written beforehand, so that what is measured is the server and not Python. One
subscriber for each web process hears the events. Checks every reply, and the texts at the end.
"""

import argparse
import json
import socket
import sys
import threading
import time
import uuid
from collections.abc import Sequence as Listed
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from app.store.connect import connect
from app.store.connect import packed as packed_command
from app.store.event_stream import ROWS
from app.store.keys import Keys
from app.store.nodes import Nodes
from app.store.requests import RequestStore
from bench.help import parser as parser_of
from bench.own_redis import own_redis, redis_counts
from bench.report_header import add_out, heading, write_report
from bench.streams.commits import TOKENS, event_of, stored, token_at, written

NAMESPACE = "bench"
LEASE_S = 600.0


@dataclass(frozen=True, slots=True)
class Load:
    """One verifier's steps, each a text to send and the reply that it must get."""

    ids: Listed[str]
    steps: Listed[bytes]
    reply: bytes


def main(argv: Listed[str] | None = None) -> int:
    """Measure each number of web processes, print, write the figures; return 0 if every reply was right."""
    args = parse_args(argv)
    report: dict[str, Any] = {**heading("bench store", argv), "points": []}
    for webs in args.webs:
        with own_redis("store") as (_, _, url):
            found = measure(url, webs, args)
        report["points"].append(found)
        print(json.dumps(found), flush=True)
    write_report(args.out, report)
    return 1 if any(found["wrong"] for found in report["points"]) else 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench store", __doc__)
    parser.add_argument("--verifiers", type=int, default=4, help="each with one step under way")
    parser.add_argument("--sequences", type=int, default=ROWS, help="in each verifier's step")
    parser.add_argument("--steps", type=int, default=1500, help="of each verifier")
    parser.add_argument("--webs", type=int, nargs="+", default=[0, 1, 4], help="web processes that hear of commits")
    add_out(parser, "store")
    args = parser.parse_args(argv)
    if min(args.verifiers, args.sequences, args.steps) <= 0 or min(args.webs) < 0:
        parser.error("numbers are more than 0")
    if args.sequences > ROWS:
        parser.error(f"one call commits at most {ROWS} sequences")
    return args


def measure(url: str, webs: int, args: argparse.Namespace) -> dict[str, Any]:
    """Commit all steps as fast as the server takes them."""
    with closing(connect(url)) as client:
        store = RequestStore(client, NAMESPACE, ttl_s=600.0, active_ttl_s=600.0)
        loads = [_load(client, store, args.sequences, args.steps) for _ in range(args.verifiers)]
        over, heard = threading.Event(), [0] * webs
        hearing = [threading.Thread(target=_hear, args=(url, over, heard, place)) for place in range(webs)]
        for thread in hearing:
            thread.start()
        while client.pubsub_numsub(Keys(NAMESPACE).committed)[0][1] < webs:
            time.sleep(0.05)
        wrong = [0] * len(loads)
        sending = [threading.Thread(target=_send, args=(url, load, wrong, place)) for place, load in enumerate(loads)]
        before, began_s = redis_counts(client), time.monotonic()
        for thread in sending:
            thread.start()
        for thread in sending:
            thread.join()
        after, took_s = redis_counts(client), time.monotonic() - began_s
        over.set()
        for thread in hearing:
            thread.join()
        known = tuple(token_at(place) for place in range(TOKENS * args.steps))
        wrong_texts = sum(store.snapshot(one).tokens != known for load in loads for one in (load.ids[0], load.ids[-1]))
    commits = args.verifiers * args.sequences * args.steps
    cpu_s = after["cpu s"] - before["cpu s"]
    return {
        "verifiers": args.verifiers,
        "sequences": args.sequences,
        "web processes": webs,
        "commits": commits,
        "wrong": sum(wrong) + wrong_texts,
        "seconds": round(took_s, 2),
        "commits a second": round(commits / took_s),
        "redis share of a core": round(cpu_s / took_s, 3),
        "redis us a commit": round(1e6 * cpu_s / commits, 2),
        "bytes in a commit": round((after["bytes in"] - before["bytes in"]) / commits),
        "bytes out a commit": round((after["bytes out"] - before["bytes out"]) / commits),
        "bytes of memory a commit": round((after["memory"] - before["memory"]) / commits),
    }


def _load(client: Any, store: RequestStore, sequences: int, steps: int) -> Load:
    """Store the requests, and write their commits as the store does."""
    owner = uuid.uuid4().hex
    Nodes(client, NAMESPACE, lease_s=LEASE_S).beat("verify", owner, owner, progress_s=0.0, info={})
    ids = stored(store, owner, sequences)
    steps_written = [
        call
        for step in range(steps)
        for call in written(store, owner, ids, event_of(TOKENS * step, step + 1, None, float(step)), "verify:bench")
    ]
    return Load(ids, steps_written, b"*%d\r\n%b:0\r\n" % (sequences + 1, b"$9\r\ncommitted\r\n" * sequences))


def _open(url: str) -> socket.socket:
    where = urlsplit(url)
    opened = socket.create_connection((str(where.hostname), int(where.port or 0)))
    if where.password:
        opened.sendall(packed_command("AUTH", unquote(where.password)))
        assert opened.recv(64) == b"+OK\r\n"
    return opened


def _send(url: str, load: Load, wrong: list[int], place: int) -> None:
    with _open(url) as server:
        for step in load.steps:
            server.sendall(step)
            reply, lines = b"", load.reply.count(b"\r\n")  # as many in any outcomes
            while reply.count(b"\r\n") < lines and (part := server.recv(2**16)):
                reply += part
                if reply.startswith(b"-"):
                    break
            wrong[place] += reply != load.reply


def _hear(url: str, over: threading.Event, heard: list[int], place: int) -> None:
    with _open(url) as server:
        server.sendall(packed_command("SUBSCRIBE", Keys(NAMESPACE).committed))
        server.settimeout(0.2)  # a look at `over` as often
        while not over.is_set():
            try:
                heard[place] += len(server.recv(2**20))
            except TimeoutError:
                continue


if __name__ == "__main__":
    sys.exit(main())
