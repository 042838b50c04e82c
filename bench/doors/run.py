"""`./paceline bench doors`: malformed input at every door of an instance, which must refuse it and go on.

Sends hand-made requests over all routes, schemathesis' over /openapi.json, tasks and envelopes that are none into
Celery's queues, and one tenant's calls for another's requests. After each group the same processes live, a normal
request has its text, and the logs hold no traceback and no prompt.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Listed
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from app.api_keys import add_key, remove_key
from app.config import Settings
from app.local.client import generate
from app.local.instance import Instance
from app.request import GenerateRequest
from bench.chaos.deployment import Site, enter
from bench.doors.cases import CANARY, groups
from bench.doors.tasks import envelopes, odd_tasks, ring_at_once
from bench.doors.tenants import KEYS, limits, other_tenants
from bench.doors.wire import at_once, judged
from bench.help import parser as parser_of
from bench.systems import start_server, stop_server

# The server says so itself: it knows no such transfer coding.
EXCUSED = {(f"coding {name}", 501) for name in ("identity", "gzip", "xchunked")}
USUAL = GenerateRequest(prompt=f"Name three birds. {CANARY}", max_tokens=16)
GET_IT = "python -m venv DIR && DIR/bin/pip install schemathesis, then --schemathesis DIR/bin/schemathesis"


@dataclass(slots=True)
class Group:
    """What was sent, what came back, and the promises that were not kept."""

    name: str
    statuses: Counter[int] | Counter[str] = field(default_factory=Counter)
    tracebacks: int = 0
    broken: list[str] = field(default_factory=list)


def main(argv: Listed[str] | None = None) -> int:
    """Try every door and print the table; return 0 if no promise was broken."""
    args = parse_args(argv)
    settings = Settings.from_env()
    instance = Instance(settings.state, args.instance or f"doors-{os.getpid()}")
    with ExitStack() as stack:
        is_ours = instance.running() is None
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "keys" if is_ours else settings.keys
        keys: dict[str, str] = {}
        for name, more in KEYS.items():
            if file is None:
                break
            keys[name] = add_key(file, f"doors-{name}", **more)
            stack.callback(remove_key, file, f"doors-{name}")
        if is_ours:
            stack.callback(stop_server, instance.name)
            start_server(instance.name, PACELINE_KEYS=str(file), PACELINE_HOSTS="localhost")
        site = enter(instance, settings, 0)
        stack.callback(site.deployment.close)
        found = tried(site, keys, args)
    print(table(found))
    for group in found:
        for line in group.broken:
            print(f"{group.name}: {line}")
    return 1 if any(group.broken for group in found) else 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench doors", __doc__)
    parser.add_argument(
        "--instance",
        help="a running one (PACELINE_KEYS names its keys' file, if it has one); by default one of its own is started",
    )
    parser.add_argument("--schemathesis", default=shutil.which("schemathesis"), help=f"its command; get it by {GET_IT}")
    parser.add_argument("--only", nargs="+", metavar="GROUP", help="only groups whose names begin so")
    return parser.parse_args(argv)


def tried(site: Site, keys: dict[str, str], args: argparse.Namespace) -> list[Group]:
    """Send each group and look at the instance after it."""
    url = site.health().url or ""
    port = urlsplit(url).port or 80
    key = SecretStr(keys["admin"]) if keys else site.deployment.settings.api_key
    sent = {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}
    tries: dict[str, Callable[[Group], None]] = {
        name: partial(_over_http, port=port, cases=cases)
        for name, cases in groups(site.deployment.settings.model_name, sent).items()
    }
    tries["schemathesis"] = partial(_schemathesis, command=args.schemathesis, url=url, headers=sent)
    doors = {"tasks": odd_tasks, "envelopes": envelopes, "doorbells": ring_at_once}
    tries |= {name: partial(_in_queues, send=send, site=site) for name, send in doors.items()}
    if keys:
        tries |= {"other_tenants": partial(_with_keys, send=other_tenants, port=port, keys=keys)}
        tries |= {"limits": partial(_with_keys, send=limits, port=port, keys=keys)}
    ask = partial(generate, url, USUAL, None, api_key=key)
    expected, pids, found = ask().text, site.health().processes, []
    for name, send in tries.items():
        if args.only and not name.startswith(tuple(args.only)):
            continue
        group, logs = Group(name), sizes(site.instance.logs)
        send(group)
        site.await_ready()
        if site.health().processes != pids:
            group.broken.append(f"the processes are others: {pids} before, {site.health().processes} now")
            pids = site.health().processes
        if (text := ask().text) != expected:
            group.broken.append(f"a normal request got {text!r}, not {expected!r}")
        group.tracebacks, lines = judged_logs(written(site.instance.logs, logs))
        group.broken += lines
        print(f"{name}: {group.statuses.total()} sent, {len(group.broken)} broken", file=sys.stderr, flush=True)
        found.append(group)
    return found


def sizes(logs: Path) -> dict[Path, int]:
    """Measure the logs, to read later what came since."""
    return {path: path.stat().st_size for path in logs.iterdir() if path.is_file()}


def written(logs: Path, since: dict[Path, int]) -> str:
    """Read what was written since `sizes`; a log that was moved aside, from its start."""
    return "".join(
        path.read_bytes()[since.get(path, 0) if size >= since.get(path, 0) else 0 :].decode(errors="replace")
        for path, size in sizes(logs).items()
    )


def judged_logs(text: str) -> tuple[int, list[str]]:
    """Count tracebacks; list the promises that the logs break."""
    kinds = Counter(re.findall(r"^Traceback (?:.*\n[ \t].*)*\n(\S.*)", text, re.MULTILINE))
    found = [f"{count} tracebacks in the logs: {kind[:200]}" for kind, count in kinds.items()]
    if CANARY in text:
        line = next(line for line in text.splitlines() if CANARY in line)
        found.append(f"{text.count(CANARY)} prompts in the logs: {line[:300]}")
    if "\x1b" in text:
        found.append("escape sequences in the logs")
    return text.count("Traceback (most recent call last)"), found


def table(found: Listed[Group]) -> str:
    """Write a line for each group."""
    head = f"{'group':<14}{'sent':>6}{'tracebacks':>12}{'broken':>8}  statuses"
    return "\n".join([head, *map(_line, found)])


def _line(group: Group) -> str:
    statuses = ", ".join(f"{status} x {count}" for status, count in sorted(group.statuses.items(), key=str))
    return f"{group.name:<14}{group.statuses.total():>6}{group.tracebacks:>12}{len(group.broken):>8}  {statuses}"


def _over_http(group: Group, port: int, cases: list[tuple[str, bytes]]) -> None:
    group.statuses, group.broken = judged(at_once(port, cases, ends=group.name == "wire"), EXCUSED)


def _in_queues(group: Group, send: Callable[[Site], tuple[Counter[str], list[str]]], site: Site) -> None:
    group.statuses, group.broken = send(site)


def _with_keys(
    group: Group, send: Callable[[int, dict[str, str]], tuple[Counter[int], list[str]]], port: int, keys: dict[str, str]
) -> None:
    group.statuses, group.broken = send(port, keys)


def _schemathesis(group: Group, command: str | None, url: str, headers: dict[str, str]) -> None:
    if command is None:
        print(f"schemathesis is left out: {GET_IT}", file=sys.stderr)
        return
    words = [
        command,
        "run",
        f"{url}/openapi.json",
        "--phases",
        "coverage,fuzzing",
        "--max-examples",
        "20",
        "--seed",
        "1",
    ]
    words += ["--generation-database", "none", "--exclude-checks", "positive_data_acceptance"]  # hooks.py has its own
    words += ["--continue-on-failure", "--request-timeout", "60", "--no-color"]
    words += [word for name, text in headers.items() for word in ("--header", f"{name}: {text}")]
    hooks = {"SCHEMATHESIS_HOOKS": str(Path(__file__).with_name("hooks.py"))}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tempfile.gettempdir(), env=os.environ | hooks)
    cases = re.search(r"(\d+) generated", done.stdout)
    group.statuses = Counter({f"exit {done.returncode}": int(cases[1]) if cases else 0})
    if done.returncode:
        group.broken.append(done.stdout[-6000:] + done.stderr[-1000:])
