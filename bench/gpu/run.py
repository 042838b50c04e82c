"""`python bench/gpu/run.py`: measure the GPU's kernels and engine against the hardware's limits, on a bare machine.

Needs torch with CUDA, triton, transformers and numpy; what else it imports, and the machine lacks, it takes from the
wheels that `python bench/gpu/wheels.py` has downloaded to build/gpu/. Runs section by section, each with a time of its
own in seconds, at which it leaves the rest of its points out. Writes the traceback of a section that fails and goes on
with the others; the exit status then is 1. Writes the figures after every section, with the hardware and the versions:
a run that is killed leaves what it has.

    python bench/gpu/run.py --model FOLDER              all of it, some 19 minutes
    python bench/gpu/run.py --only kernels parity       some sections; bench/gpu/wheels.py says them in three commands
    python bench/gpu/run.py --quick                     some four minutes at most, on tiny models: does all run here?
    TRITON_INTERPRET=1 python bench/gpu/run.py --quick --device cpu       the same without a GPU
"""

import argparse
import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)  # run as a file: the packages lie beside its folder, not in it

SECTIONS = {  # name: seconds; the others need the first one's figures
    "machine": 20,
    "kernels": 100,
    "sanitizer": 60,
    "bandwidth": 90,
    "parity": 80,
    "steps": 130,
    "mixed": 130,
    "prompts": 60,
    "loop": 100,
    "exact": 130,
    "overlap": 45,
    "products": 30,
    "model": 60,
    "peers": 95,
    "bars": 1,
}
QUICK_SECTION_S = 15  # of a section, at most, on a GPU: Triton's interpreter takes its time
NEEDED = ("torch", "triton", "transformers", "numpy")


def main() -> int:
    """Run the sections asked for, print and write their figures; return the exit status."""
    args = parse_args()
    from bench.gpu import wheels

    carried = wheels.use()
    from bench.gpu.setting import Figures, setting_of  # not before the packages are there

    figures: Figures = {
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
        "is_quick": args.quick,
        "from_wheels": carried,
        "errors": {},
    }
    setting = setting_of(args.device, args.quick, args.model, figures)
    for name, seconds in SECTIONS.items():
        if name not in ("machine", "bars") and args.only and name not in args.only:
            continue
        most_s = min(seconds, QUICK_SECTION_S) if args.quick and args.device == "cuda" else seconds
        print(f"\n== {name} (at most about {most_s} s)", flush=True)
        started = time.perf_counter()
        setting.ends_s = started + most_s
        found = figures[name] = {}
        try:
            importlib.import_module(f"bench.gpu.sections.{name}").measure(setting, found)
        except Exception:
            figures["errors"][name] = traceback.format_exc()
            print(figures["errors"][name], flush=True)
        found["seconds"] = round(time.perf_counter() - started, 1)
        setting.free()
        write(args.out, figures)
    print(f"\n{len(figures['errors'])} sections failed: {', '.join(figures['errors']) or 'none'}; see {args.out}")
    return 1 if figures["errors"] else 0


def parse_args() -> argparse.Namespace:
    """Parse the command line; exit on a wrong one, or where packages are missing."""
    parser = argparse.ArgumentParser(
        prog="python bench/gpu/run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "gpu.json", help="file to write")
    parser.add_argument("--model", type=Path, help="folder of a real model, such as SmolLM2: its text is compared")
    chosen = [name for name in SECTIONS if name not in ("machine", "bars")]
    parser.add_argument("--only", nargs="+", choices=chosen, metavar="SECTION", help=", ".join(chosen))
    parser.add_argument(
        "--quick", action="store_true", help="tiny models and few timings: says nothing but that it runs"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"{sys.executable} lacks {', '.join(missing)}")
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted != (args.device == "cpu"):
        parser.error("--device cpu needs TRITON_INTERPRET=1 in the environment, and a GPU needs it unset")
    if args.device == "cpu" and not args.quick:
        parser.error("without a GPU there is only --quick")
    if args.model and not (args.model / "config.json").exists():
        parser.error(f"{args.model} holds no model")
    return args


def write(out: Path, figures: object) -> None:
    """Write the figures at once, so that a killed run leaves a whole file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".part")
    part.write_text(json.dumps(figures, indent=1) + "\n")
    part.replace(out)


if __name__ == "__main__":
    sys.exit(main())
