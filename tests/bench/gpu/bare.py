"""A bare machine: an environment whose interpreters see no packages but those a GPU machine has, and the wheels'."""

import os
import re
from importlib import metadata
from pathlib import Path

from bench.gpu.wheels import PACKAGES

THERE = ("torch", "triton", "transformers", "numpy", "numba", "pytest", "hypothesis")
LEFT_OUT = ("drafters", "training", "web", "workers")  # of our own, not in the tree that is carried
HIDE = """
import importlib.machinery, sys
HIDDEN = {hidden!r}
class Bare(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)
sys.meta_path[:] = [Bare if one is importlib.machinery.PathFinder else one for one in sys.meta_path]
"""


def environment(folder: Path, wheels: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Write into `folder` what makes interpreters bare; return the environment that does so to them and to
    their children."""
    seen = depended_on(THERE) | {_plain(name) for name in wheels}
    owners = metadata.packages_distributions().items()
    hidden = {module for module, names in owners if not any(_plain(name) in seen for name in names)}
    (folder / "sitecustomize.py").write_text(HIDE.format(hidden=hidden | set(LEFT_OUT)))
    return os.environ | {"PYTHONPATH": str(folder), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}


def depended_on(roots: tuple[str, ...]) -> set[str]:
    """Return the names of the packages and of all that they depend on, without extras and without the wheels."""
    found: set[str] = set()
    left = [_plain(root) for root in roots]
    while left:
        name = left.pop()
        if name in found or name in PACKAGES:
            continue
        try:
            wanted = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # of another platform
        found.add(name)
        left += [_plain(re.split(r"[^\w.-]", line)[0]) for line in wanted if not re.search(r"\bextra *==", line)]
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
