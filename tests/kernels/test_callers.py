"""Test that every kernel is reached by what serves: none remains that serves nothing."""

import ast
from pathlib import Path

from kernels.compile import MODULES
from tests.test_architecture import ROOT


def imported(path: Path) -> set[str]:
    """Return the modules of kernels that a file imports, with the names that may be modules themselves."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return {name for name in found if name.startswith("kernels.")}


def test_each_kernel_is_called_from_the_application():
    reached = set().union(*(imported(path) for path in (ROOT / "app").rglob("*.py")))
    todo = [*reached]
    while todo:
        path = ROOT / (todo.pop().replace(".", "/") + ".py")
        new = imported(path) - reached if path.exists() else set()
        reached |= new
        todo += new
    assert set(MODULES) <= reached, "see kernels/compile.py"
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "kernels").rglob("*_triton.py")}
    assert files <= reached
