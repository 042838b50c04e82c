"""`./paceline bench [NAME] ...`: run a benchmark by name, or without one the usual comparison (`bench.run`)."""

import importlib
import os
import sys
from collections.abc import Iterator, Sequence

from bench.run import main as compare
from bench.systems import ALIKE

MODULES = {
    "costs": ("bench.cost_errors", "how far the expected costs of steps and drafts are off, held out"),
    "cpu": ("bench.cpu", "a step on a CPU: its roofline, its parts, its products alone"),
    "doors": ("bench.doors.run", "malformed requests, tasks and envelopes: refused, and nothing stops for them"),
    "flips": ("bench.flips", "how often vLLM's greedy token changes with the rows beside it"),
    "load": ("bench.load.run", "requests as a scenario says (bursts, overload, an hour, a change); what clients see"),
    "peers": ("bench.peers.run", "llama.cpp, vLLM and transformers beside Paceline, on the same prompts in one run"),
    "rounding": ("bench.rounding", "what rounded weights or activations change in what the target says next"),
    "scale": ("bench.scale.run", "what a round costs the host, around a target that only takes time"),
    "steer": ("bench.steer_replay", "decide again what a recorded controller decided"),
    "store": ("bench.scale.store_load", "tokens a second that one Redis carries"),
    "streams": ("bench.streams.run", "hundreds of open event streams on one web process"),
    "timeline": ("bench.timeline", "a picture of each node's busy times"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark; return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    is_named = bool(words) and words[0] in MODULES
    if is_named:
        module = importlib.import_module(MODULES[words[0]][0])  # only this one: each has needs of its own
        return int(module.main(words[1:]))
    os.environ.update(ALIKE)  # inherited by the instance that is started
    return compare(words, epilog="others, each with a --help of its own:\n" + "\n".join(_listed()))


def _listed() -> Iterator[str]:
    for name, (_, text) in MODULES.items():
        yield f"  {f'bench {name}':<17}  {text}"


if __name__ == "__main__":
    sys.exit(main())
