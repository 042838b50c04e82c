"""What numba keeps of compiled kernels is found by name, so no two of them may share one."""

import importlib
import pkgutil
from collections import Counter
from pathlib import Path

import pytest

import kernels.cpu
from kernels.cpu import jit


def test_no_two_kernels_of_a_module_have_one_name() -> None:
    """Names in the compiled code are those of module, function and types, and a number that each process counts anew:
    two functions of one name that were compiled in different processes would be taken for one another."""
    found: dict[int, str] = {}
    for info in pkgutil.iter_modules(kernels.cpu.__path__):
        module = importlib.import_module(f"kernels.cpu.{info.name}")
        for value in vars(module).values():
            function = getattr(value, "py_func", None)
            if function is not None:
                found[id(value)] = f"{function.__module__}.{function.__qualname__}"
    assert len(found) > 30
    assert {name: count for name, count in Counter(found.values()).items() if count > 1} == {}


def test_it_is_kept_where_numba_is_told_to_by_the_sources_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = jit._cache()
    monkeypatch.setattr(jit, "GIVEN", str(tmp_path / "given"))
    assert jit._cache() == tmp_path / "given" / default.name.removeprefix("paceline-")
    (tmp_path / "given").rename(tmp_path / "moved")
    (tmp_path / "given").write_text("no folder")
    assert jit._cache() == default
