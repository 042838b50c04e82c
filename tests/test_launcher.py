"""Test the launcher in a clone of its own: the first use, the second, two at once, and one that fails."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config import ROOT
from tests.app.local.wheels import make_wheel


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """Put the launcher beside an app that prints its interpreter, and packages that cost nothing."""
    made = tmp_path / "a clone"
    (made / "app" / "cli").mkdir(parents=True)
    shutil.copy(ROOT / "paceline", made)
    (made / "pyproject.toml").touch()
    (made / "requirements.txt").write_text("torch==0.0.1\nother==0.0.1\n")
    (made / "app" / "cli" / "main.py").write_text("import sys, torch, other; print(sys.executable, sys.argv[1:])")
    for name in ("torch", "other"):
        make_wheel(tmp_path / "wheels", name, "0.0.1", {f"{name}.py": b""})
    (wheel,) = (tmp_path / "wheels").glob("other-*")
    (made / "requirements.lock").write_text(
        f"other==0.0.1 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
    )
    yield made
    shutil.rmtree(made)


def _run(clone: Path, *words: str, **environ: str) -> "subprocess.Popen[str]":
    kept = {k: v for k, v in os.environ.items() if k not in ("PACELINE_PYTHON", "PYTHONPATH")}  # ours, not its
    packages = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(clone.parent / "wheels")}
    return subprocess.Popen(
        [sys.executable, str(clone / "paceline"), *words],
        env={**kept, **packages, **environ},
        cwd=clone.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_concurrent_first_uses_make_one_environment(clone: Path) -> None:
    both = [process.communicate(timeout=300) for process in [_run(clone, "a"), _run(clone, "b")]]
    python = str(clone / ".venv" / "bin" / "python")
    assert [out for out, _ in both] == [f"{python} ['a']\n", f"{python} ['b']\n"]
    assert sorted("[3/4] torch" in err for _, err in both) == [False, True]
    assert _run(clone, "-x", "c d").communicate(timeout=60) == (f"{python} ['-x', 'c d']\n", "")
    (clone / "requirements.txt").write_text("torch==0.0.1\nother==0.0.1\n# changed\n")
    out, err = _run(clone).communicate(timeout=300)
    assert out == f"{python} []\n" and "updating" in err


@pytest.mark.slow
def test_failing_install_shows_pips_error_and_the_log(clone: Path) -> None:
    (clone / "requirements.txt").write_text("torch==9.9.9\n")
    process = _run(clone)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1 and out == ""
    assert "torch==9.9.9" in err and str(clone / ".paceline" / "install.log") in err and "Traceback" not in err


@pytest.mark.slow
def test_package_with_another_hash_is_refused(clone: Path) -> None:
    make_wheel(clone.parent / "wheels", "other", "0.0.1", {"other.py": b"print('of another maker')"})
    process = _run(clone)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1 and out == ""
    assert "packages failed" in err and "HASH" in err.upper()


def test_each_requirement_is_locked() -> None:
    """`deploy/lock` was run after the last change of a requirements file."""
    required = {
        re.sub(r"\[.*\]", "", line.split(";")[0].split("#")[0]).strip().lower().replace("_", "-")
        for path in ROOT.glob("requirements*.txt")
        for line in path.read_text().splitlines()
        if "==" in line.split("#")[0]
    }
    locked = {line.split(" ")[0] for path in ROOT.glob("requirements*.lock") for line in path.read_text().splitlines()}
    assert {one for one in required if not one.startswith("torch==")} <= locked


def test_given_interpreter_needs_no_environment(clone: Path) -> None:
    (clone / "app" / "cli" / "main.py").write_text("import sys; print(sys.argv[1:])")
    out, _ = _run(clone, "status", PACELINE_PYTHON=sys.executable).communicate(timeout=60)
    assert out == "['status']\n" and not (clone / ".venv").exists()
    process = _run(clone, PACELINE_PYTHON="/nowhere/python")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "cannot run /nowhere/python" in err


def test_what_the_system_refuses_is_a_sentence(clone: Path) -> None:
    (clone / ".paceline").touch()
    process = _run(clone)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, f"paceline: {clone}/.paceline cannot be used: File exists\n")


def test_an_installed_package_writes_into_the_users_state_folder(clone: Path) -> None:
    (clone / "pyproject.toml").unlink()
    state = clone.parent / "state"
    state.touch()
    process = _run(clone, XDG_STATE_HOME=str(state))
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, f"paceline: {state}/paceline cannot be used: Not a directory\n")


INTERRUPT = """
import os, signal
if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_interrupt_before_the_imports_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT)
    process = _run(ROOT, "status", PACELINE_PYTHON=sys.executable, PYTHONPATH=str(tmp_path))
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "paceline: interrupted\n")


def test_folder_named_app_in_the_working_directory_is_ignored(clone: Path) -> None:
    (clone / "app" / "cli" / "main.py").write_text("print('ours')")
    (clone.parent / "app" / "cli").mkdir(parents=True)
    (clone.parent / "app" / "cli" / "main.py").write_text("print('theirs')")
    assert _run(clone, PACELINE_PYTHON=sys.executable).communicate(timeout=60)[0] == "ours\n"
