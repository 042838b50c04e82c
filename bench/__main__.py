"""`./paceline bench [NAME] ...`: run a benchmark by name, or without one the usual comparison
(`bench.run`)."""

import importlib
import os
import sys
from collections.abc import Iterator, Sequence

from bench.run import main as compare

MODULES = {
    "costs": (
        "bench.cost_errors",
        "how far the expected costs of steps and drafts are off, at points not measured before",
    ),
    "load": ("bench.clients.load", "requests at Poisson, bursty, rising or recorded times; what clients meet"),
    "meanwhile": (
        "bench.clients.under_change",
        "clients at a running deployment while a command changes it under them",
    ),
    "overload": ("bench.clients.overload", "ten times more requests than can be served"),
    "peers": ("bench.peers.run", "llama.cpp, vLLM and transformers beside Paceline, on the same prompts in one run"),
    "scale": ("bench.scale.run", "what a round costs the host, around a target that only takes time"),
    "soak": ("bench.clients.soak", "an hour of steady load: does anything grow?"),
    "start": ("bench.clients.start", "what a load's first seconds lose on a deployment that has just started or idled"),
    "steer": ("bench.steer_replay", "decide again what a recorded controller decided"),
    "store": ("bench.scale.store_load", "tokens a second that one Redis carries"),
    "streams": ("bench.clients.streams", "hundreds of open event streams on one web process"),
    "timeline": ("bench.timeline", "a picture of each node's busy times"),
}


# The same prompts come in every arm: with a prefix cache a later arm would reuse the work of an
# earlier one.
ALIKE = {"PACELINE_PREFIX_CACHE": "0"}
HAVE_ARMS = {"load", "start"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark; return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    is_named = bool(words) and words[0] in MODULES
    if not is_named or words[0] in HAVE_ARMS:
        os.environ.update(ALIKE)  # inherited by started instances, too
    if is_named:
        module = importlib.import_module(MODULES[words[0]][0])  # only this one: each has needs of its own
        return int(module.main(words[1:]))
    return compare(words, epilog="others, each with a --help of its own:\n" + "\n".join(_listed()))


def _listed() -> Iterator[str]:
    for name, (_, text) in MODULES.items():
        yield f"  {f'bench {name}':<17}  {text}"


if __name__ == "__main__":
    sys.exit(main())
