"""`python bench/gpu/wheels.py`: download what `run.py` needs beside a bare machine's packages.

A bare machine has torch, triton, transformers, numpy, numba and pytest with what these depend on, on
Python 3.12, and perhaps no network. The wheels are of the versions and hashes in `requirements.lock`,
for Linux on x86_64, and lie in `build/gpu/`, which git ignores. The tree that `run.py` needs, packed,
lies beside them. Unpack it there, put the folder `build/gpu/` into it, and run:

    python bench/gpu/wheels.py                  here, with the network
    tar -xf build/gpu/tree.tar                  there, in an empty folder; build/gpu/ beside app/

    python bench/gpu/run.py --quick --out quick.json &&
        python bench/gpu/run.py --only kernels sanitizer parity --out bench/results/gpu-1.json
    python bench/gpu/run.py --only bandwidth steps loop --out bench/results/gpu-2.json
    python bench/gpu/run.py --only mixed prompts exact overlap products peers --out bench/results/gpu-3.json

Each of the last three commands ends within ten minutes, and writes figures to be kept to `bench/results/`. One question
at a time, with an `--out` of its own:

    does everything run here                            --quick
    kernels right, and bound by what they move          --only kernels sanitizer
    captured steps equal to eager ones                  --only parity
    a step's time against its floor, and verifying      --only steps
    attention's bandwidth over contexts                 --only bandwidth
    a serving loop with drafts and without              --only loop
    steps of all sizes, on one stream and on many       --only mixed
    prompts by chunks                                   --only prompts
    the exact mode's bits, and the default's flips      --only exact
    drafting beside verifying; FP8; transformers        --only overlap products peers
    a whole deployment, with real text (more wheels)    wide_model.py, then served.py
"""

import argparse
import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "gpu"
PACKAGES = ("annotated-types", "gguf", "llguidance", "msgspec", "pydantic", "pydantic-core", "typing-inspection")
TREE = ("app", "bench", "kernels", "tests", "pyproject.toml")
MOST_BYTES = 48 << 20
PYTHON = "3.12"
PLATFORMS = tuple(f"manylinux_2_{minor}_x86_64" for minor in range(17, 36))  # of glibc 2.35 and older


def main() -> int:
    """Download the wheels, pack the tree; return 1 if both together are too large to be carried."""
    parser = argparse.ArgumentParser(
        prog="python bench/gpu/wheels.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    wanted = FOLDER / "wheels.txt"
    wanted.write_text("\n".join(pinned()) + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--implementation=cp", f"--python-version={PYTHON}"]
    command += [f"--platform={name}" for name in PLATFORMS]
    subprocess.run([*command, f"--dest={FOLDER}", f"--requirement={wanted}"], check=True)
    pack(FOLDER / "tree.tar")
    bytes_ = sum(path.stat().st_size for path in [FOLDER / "tree.tar", *FOLDER.glob("*.whl")])
    print(f"{len(list(FOLDER.glob('*.whl')))} wheels and the tree in {FOLDER}: {bytes_ / 2**20:.1f} MiB")
    if bytes_ > MOST_BYTES:
        print(f"that is more than {MOST_BYTES >> 20} MiB", file=sys.stderr)
        return 1
    return 0


def pinned() -> list[str]:
    """Return the packages' lines of `requirements.lock`, with their hashes. Raises KeyError where one lacks."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    blocks = {block.split("==")[0]: block.rstrip() for block in re.split(r"\n(?=\S)", text)}
    return [blocks[name] for name in PACKAGES]


def pack(out: Path) -> None:
    """Write the committed tree that `run.py` needs as a tar file."""
    subprocess.run(["git", "archive", f"--output={out}", "HEAD", *TREE], cwd=ROOT, check=True)


def use(folder: Path = FOLDER) -> list[str]:
    """Make the wheels' packages that this interpreter lacks importable; return their names.

    Compiled modules are not imported out of an archive, so the wheels are unpacked beside themselves,
    once. What the interpreter has of its own comes first.
    """
    lacking = [name for name in PACKAGES if importlib.util.find_spec(name.replace("-", "_")) is None]
    if lacking and folder.exists():
        unpacked = folder / "packages"
        for wheel in sorted(folder.glob("*.whl")):
            if not (unpacked / wheel.stem).exists():
                zipfile.ZipFile(wheel).extractall(unpacked)
                (unpacked / wheel.stem).touch()
        if str(unpacked) not in sys.path:
            sys.path.append(str(unpacked))
        importlib.invalidate_caches()
    return lacking


if __name__ == "__main__":
    sys.exit(main())
