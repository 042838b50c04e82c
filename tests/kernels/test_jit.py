"""Test that kept code of compiled kernels is found by name, so that no two of them share one, and made once."""

import fcntl
import importlib
import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from numba.core.caching import IndexDataCacheFile

import kernels.cpu
from app.config import ROOT
from kernels import jit
from kernels.cpu.attention import ATTEND
from kernels.cpu.products.embedding import ROW
from kernels.cpu.products.linear import LINEAR

SAVES = 150
WRITER = f"""
import sys; from pathlib import Path; from numba.core.caching import IndexDataCacheFile; from kernels import jit
folder, process = Path(sys.argv[1]), int(sys.argv[2])
save = jit.one_at_a_time(folder / "lock", IndexDataCacheFile(str(folder), "base", "stamp").save)
for number in range({SAVES}):
    save((process, number), f"of {{process}}, {{number}}")
"""
COMPILER = """
import sys, time; from pathlib import Path; from kernels import jit
folder, process = Path(sys.argv[1]), int(sys.argv[2])
def compile_():
    if (folder / "kept").exists():
        return "loaded"
    time.sleep(0.5)
    (folder / "kept").touch()
    return "compiled"
(folder / f"{process} is here").touch()
while not (folder / f"{1 - process} is here").exists():
    time.sleep(0.01)
print(jit.compiled_once(folder / "lock", compile_)())
"""


def test_no_two_kernels_of_a_module_have_one_name() -> None:
    """Names in the compiled code are made of module, function, types and a number that each process
    counts anew.

    Two functions of one name that were compiled in different processes would be taken for one
    another.
    """
    found: dict[int, str] = {}
    for info in pkgutil.walk_packages(kernels.cpu.__path__, "kernels.cpu."):
        values = [*vars(importlib.import_module(info.name)).values()]
        for native in {ATTEND, *ROW.values(), *(one for kinds in LINEAR.values() for one in kinds.values())}:
            function = vars(native)["_function"]
            found[id(native)] = f"{function.__module__}.{function.__qualname__}"
            values += [cell.cell_contents for cell in function.__closure__ or ()]
        for value in values:
            function = getattr(value, "py_func", None)
            if function is not None:
                found[id(value)] = f"{function.__module__}.{function.__qualname__}"
    assert len(found) > 60
    assert {name: count for name, count in Counter(found.values()).items() if count > 1} == {}


def test_code_lies_in_numbas_folder_named_by_the_sources_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "GIVEN", None)  # whatever this run was given
    default = jit._cache()
    monkeypatch.setattr(jit, "GIVEN", str(tmp_path / "given"))
    assert jit._cache() == tmp_path / "given" / default.name.removeprefix("paceline-")
    (tmp_path / "given").rename(tmp_path / "moved")
    (tmp_path / "given").write_text("no folder")
    assert jit._cache() == default


def test_a_change_to_any_kernel_names_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "cpu" / name for name in ("jit.py", "decoder.py", "products/tile.py")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("before")
    monkeypatch.setattr(jit, "__file__", str(files[0]))
    seen = {jit._cache()}
    for file in files:
        file.write_text("after")
        seen.add(jit._cache())
    assert len(seen) == 1 + len(files)


def test_processes_that_save_code_at_once_save_each_their_own(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(process)], cwd=ROOT) for process in range(2)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    kept = IndexDataCacheFile(str(tmp_path), "base", "stamp")
    for process in range(2):
        for number in range(SAVES):
            assert kept.load((process, number)) == f"of {process}, {number}"


def test_processes_that_need_a_kernel_at_once_compile_it_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPILER, str(tmp_path)]
    both = [
        subprocess.Popen([*command, str(process)], cwd=ROOT, stdout=subprocess.PIPE, text=True) for process in range(2)
    ]
    assert sorted(process.communicate(timeout=60)[0] for process in both) == ["compiled\n", "loaded\n"]


def test_a_kernel_is_compiled_beside_a_frozen_process_and_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "COMPILE_S", 0.1)
    with (tmp_path / "lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert jit.compiled_once(tmp_path / "lock", int)("7") == 7
    assert jit.compiled_once(tmp_path / "nowhere" / "lock", int)("8") == 8
