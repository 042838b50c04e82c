"""`./paceline lab NAME ...`: run an experiment by name. They are in a clone only, not in the package."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

MODULES = {
    "beam": ("lab.beam", "what trees over recordings are worth: chains, second choices as leaves, two paths"),
    "record": ("lab.record", "record real drafts, for simulations"),
    "settings": ("lab.settings", "`pace` over plain decoding in eighteen stated settings, simulated"),
    "testbeds": ("lab.testbeds.run", "the testbeds of CoSine and FASER, simulated: arms in worlds of stated numbers"),
    "ways": ("lab.run", "ways of drafting over the same requests: in one process, simulated or deployed"),
}
# The same prompts come in every arm: with a prefix cache a later arm would reuse the work of an earlier one.
ALIKE = {"PACELINE_PREFIX_CACHE": "0"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one experiment; return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    listed = "\n".join(f"  {name:<10}  {text}" for name, (_, text) in MODULES.items())
    parser = argparse.ArgumentParser(
        prog="paceline lab",
        description="Run an experiment.",
        epilog=f"experiments, each with a --help of its own:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=[*MODULES], metavar="NAME", help="of an experiment")
    name = parser.parse_args(words[:1]).name
    os.environ.update(ALIKE)  # inherited by started instances
    return int(importlib.import_module(MODULES[name][0]).main(words[1:]))


if __name__ == "__main__":
    sys.exit(main())
