"""Test that the GPU's benchmark starts where nothing of ours is installed.

`test_run` runs all of it there, and `tests.kernels.test_device` the kernels' tests."""

import importlib.util
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from bench.gpu import wheels
from bench.gpu.run import QUICK_SECTION_S, SECTIONS
from tests.bench.gpu import bare

ROOT = Path(__file__).parents[3]
QUICK_S = sum(min(QUICK_SECTION_S, seconds) for seconds in SECTIONS.values())
LIMIT_S = 600
IMPORT = "import importlib\nfor name in {names!r}: importlib.import_module('bench.gpu.sections.' + name)"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not made for this")


def bare_python(folder: Path, *words: str, packages: tuple[str, ...] = wheels.PACKAGES) -> subprocess.CompletedProcess:
    env = bare.environment(folder, packages) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@needs_triton
def test_every_section_imports_on_a_bare_machine(tmp_path):
    done = bare_python(tmp_path, "-c", IMPORT.format(names=tuple(SECTIONS)))
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("name", wheels.PACKAGES)
def test_a_bare_machine_lacks_each_of_the_wheels(tmp_path, name):
    module = name.replace("-", "_")
    find = f"import importlib.util as u; print(u.find_spec({module!r}) is None, u.find_spec('redis') is None)"
    left = tuple(one for one in wheels.PACKAGES if one != name)
    assert bare_python(tmp_path, "-c", find, packages=left).stdout == "True True\n"
    assert bare_python(tmp_path, "-c", find).stdout == "False True\n"


def test_wheels_are_pinned_by_version_and_hash_and_bring_what_they_depend_on():
    lines = wheels.pinned()
    assert len(lines) == len(wheels.PACKAGES)
    for name, line in zip(wheels.PACKAGES, lines, strict=True):
        assert line.startswith(f"{name}=={metadata.version(name)} ") and "--hash=sha256:" in line


def test_wheels_are_unpacked_once_and_only_where_they_are_lacking(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "lacking_one-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("lacking_one/__init__.py", "VALUE = 3\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(wheels, "PACKAGES", ("pydantic",))
    assert wheels.use(tmp_path) == [] and not (tmp_path / "packages").exists()
    monkeypatch.setattr(wheels, "PACKAGES", ("pydantic", "lacking-one"))
    assert wheels.use(tmp_path) == ["lacking-one"] and sys.path[-1] == str(tmp_path / "packages")
    import lacking_one

    assert lacking_one.VALUE == 3
    (tmp_path / "packages" / "lacking_one" / "__init__.py").write_text("VALUE = 4\n")
    monkeypatch.delitem(sys.modules, "lacking_one")
    wheels.use(tmp_path)
    assert (tmp_path / "packages" / "lacking_one" / "__init__.py").read_text() == "VALUE = 4\n"


def test_the_tree_leaves_room_for_the_wheels(tmp_path):
    """The script counts both; the wheels of today have 6 MiB."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git clone")
    wheels.pack(tmp_path / "tree.tar")
    assert (tmp_path / "tree.tar").stat().st_size < wheels.MOST_BYTES - (16 << 20)


def test_each_of_the_three_commands_ends_within_ten_minutes_and_keeps_its_figures():
    """By the sections' times, with the machine's and the bars', which every run has."""
    lines = [line.strip() for line in wheels.__doc__.replace("&&\n", "&&").splitlines()]
    commands = [line for line in lines if line.startswith("python bench/gpu/run.py")]
    assert len(commands) == 3
    run: list[str] = []
    for place, command in enumerate(commands, start=1):
        *quick, full = (part.split()[2:] for part in command.split("&&"))
        assert all(words[0] == "--quick" for words in quick)
        only, names, (out, path) = full[0], full[1:-2], full[-2:]
        assert (only, out, path) == ("--only", "--out", f"bench/results/gpu-{place}.json")
        assert QUICK_S * len(quick) + sum(SECTIONS[name] for name in ("machine", *names, "bars")) < LIMIT_S
        run += names
    assert sorted(run) == sorted(SECTIONS.keys() - {"machine", "bars", "model"}), "each once; a model is not carried"
