"""Clients at a running deployment while a command changes it: `bench load meanwhile --url URL -- COMMAND ...`

Asks for a set of texts undisturbed, then again and again, from before the command's start to after its end. Half of
the clients follow streams and resume one that breaks; the others wait for one answer on one connection.
"""

import argparse
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence as Listed
from dataclasses import asdict
from http.client import HTTPException
from pathlib import Path
from typing import Any

from app.config import ROOT
from app.errors import GenerationFailed, PacelineError
from app.local.client import generate
from app.messages import Result
from bench.chaos.clients import ClientCounts, Clients
from bench.chaos.report import DRAIN_S
from bench.chaos.run import requests
from bench.report_header import heading, write_report

ANSWER_S = 300.0  # longest wait for one answer
SILENCES = 10  # the longest, which are reported


class Waiting(Clients):
    """Clients that wait for the whole answer: a connection that breaks counts as a lost request."""

    def _ask(self, number: int) -> tuple[Result, float]:
        started_s = time.monotonic()
        body = self._requests[number].model_dump(mode="json", exclude_none=True)
        call = urllib.request.Request(
            f"{self._url}/api/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(call, timeout=ANSWER_S) as response:
                if response.status != 200:
                    raise GenerationFailed(f"answered {response.status}: ask again for it")
                result = Result.model_validate_json(response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise PacelineError(f"answered {error.code}") from error
        except urllib.error.URLError as error:  # not connected, so nothing was asked
            raise PacelineError(f"no connection: {error.reason}") from error
        except (OSError, HTTPException) as error:
            raise GenerationFailed(f"the connection broke: {type(error).__name__}") from error
        ended_s = time.monotonic()
        self._moved_s[threading.current_thread().name] = ended_s
        return result, ended_s - started_s


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the scenario's flags."""
    parser.add_argument("--url", required=True, help="of a web server that wants no key, or of the proxy before it")
    parser.add_argument("--clients", type=int, default=4, help="of each kind")
    parser.add_argument("--requests", type=int, default=8, help="different texts to ask for")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens a text")
    parser.add_argument("--seed", type=int, default=0, help="of what clients ask")
    parser.add_argument("--after", type=float, default=5.0, help="seconds of load before the command, and after it")
    parser.add_argument("--out", type=Path, help="file to write")
    parser.add_argument("command", nargs="+", help="what to run meanwhile")


def main(args: argparse.Namespace, argv: Listed[str] | None) -> int:
    """Run clients and command; return 0 if every request got its text and the command succeeded.

    Prints the command's lines with their times, then the clients' counts.
    """
    texts = requests(args.requests, args.max_tokens)
    expected = [generate(args.url, text, None).token_ids for text in texts]
    crowds = {
        name: kind(args.url, texts, expected, args.seed) for name, kind in (("streams", Clients), ("answers", Waiting))
    }
    started_s = time.monotonic()
    for crowd in crowds.values():
        crowd.start(args.clients)
    time.sleep(args.after)
    status = _run(args.command, started_s)
    time.sleep(args.after)
    for crowd in crowds.values():
        crowd.stop(DRAIN_S)
    seconds = round(time.monotonic() - started_s, 1)
    counts = {name: _figures(crowd.counts, started_s) for name, crowd in crowds.items()}
    report = {**heading("bench load", argv), "exit_status": status, "seconds": seconds, **counts}
    if args.out is not None:
        write_report(args.out, report)
    for kind in counts.values():
        print(json.dumps(kind))
    return 1 if status or any(kind[what] for kind in counts.values() for what in ("wrong", "failed", "lost")) else 0


def _run(command: list[str], started_s: float) -> int:
    """Run the command, print each of its lines with its time; return its exit status."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            print(f"{time.monotonic() - started_s:7.1f} s  {line}", end="", flush=True)
    return process.returncode


def _figures(counts: ClientCounts, started_s: float) -> dict[str, Any]:
    longest = sorted(counts.silences, key=lambda silence: silence[1] - silence[2])[:SILENCES]
    silences = [{"at_s": round(start - started_s, 1), "lasted_s": round(end - start, 2)} for _, start, end in longest]
    return asdict(counts) | {"silences": silences}
