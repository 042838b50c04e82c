"""Serve one engine in a process: a job a line in, an answer a line out.

Standard library only, as it runs in the peers' environments.

A job is {"prompts": [[token ids], ...], "max_tokens": n}, all prompts at once, greedy, no end token; the answer
{"seconds": s, "tokens": [[token ids], ...]}. The first line an engine writes says that it is ready.
"""

import json
import os
import sys
import time
from collections.abc import Callable

Answer = list[list[int]]
Run = Callable[[list[list[int]], int], Answer]


def serve(load: Callable[[], Run]) -> None:
    """Load the engine, then answer until there are no more jobs; the engine's own output goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run = load()
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        started = time.perf_counter()
        tokens = run(job["prompts"], job["max_tokens"])
        print(json.dumps({"seconds": time.perf_counter() - started, "tokens": tokens}), file=out, flush=True)
