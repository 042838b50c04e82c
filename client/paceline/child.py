"""Start Paceline's server as a child process, and end it; its code is on the child's path alone."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from paceline.errors import Error

HERE = Path(__file__).resolve().parent
SERVER = HERE / "_server" if (HERE / "_server").is_dir() else HERE.parents[1]  # of a wheel, of a clone
READY = re.compile(r"Paceline is ready at (http://\S+)")
PREFIX = "paceline-program-"
POLL_S = 0.1
STOP_S = 40.0  # the server stops its own processes in three groups, ten seconds for each
LAST_LINES = 25


def launcher() -> list[str]:
    """Make the command that runs the server's launcher; -S, since it needs the standard library alone."""
    return [os.environ.get("PACELINE_PYTHON") or sys.executable, "-S", str(SERVER / "paceline")]


class Child:
    """A server of this process alone; it ends by `close`, with this object, or with this process."""

    def __init__(self, settings: Mapping[str, object], quiet: bool) -> None:
        _sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # its state: logs, Redis' file; readable by us alone
        self._log = self._folder / "server.log"
        try:
            self._process = self._start(settings)
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise Error(f"the server cannot be started: {error}") from error
        self.close = weakref.finalize(self, _end, self._process, self._folder, os.getpid())
        try:
            self.url = self._await_ready(quiet)
        except BaseException:
            self.close()
            raise

    def _start(self, settings: Mapping[str, object]) -> "subprocess.Popen[bytes]":
        command = ["up", "--host", "127.0.0.1", "--instance", "program", "--parent", str(os.getpid())]
        begun = self._log.with_suffix(".begun")
        with begun.open("wb") as log:
            fcntl.flock(log, fcntl.LOCK_EX)  # held until the server has ended, which writes here
            begun.rename(self._log)
            return subprocess.Popen(
                [*launcher(), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_variables({**settings, "state": self._folder})},
                start_new_session=True,  # a terminal's Ctrl-C reaches this process, which ends it or goes on
            )

    def lost(self) -> str | None:
        """Say how the server ended; None while it runs."""
        code = self._process.poll()
        return None if code is None else f"the server has ended (exit {code}). Its last lines:\n{self._last_lines()}"

    def _await_ready(self, quiet: bool) -> str:
        shown = 0
        while True:
            ended = self._process.poll() is not None  # before its last lines are read
            text = self._log.read_text(errors="replace")
            whole = text[: text.rfind("\n") + 1]
            if not quiet:
                sys.stderr.write(whole[shown:])
                sys.stderr.flush()
            shown = len(whole)
            if (found := READY.search(whole)) is not None:
                return found.group(1)
            if ended:
                raise Error(f"the server did not start:\n{self._last_lines()}")
            time.sleep(POLL_S)

    def _last_lines(self) -> str:
        with suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        return "(gone)"


def _sweep() -> None:
    """Remove the folders that killed programs have left."""
    for log in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/server.log"):
        with suppress(OSError), log.open("rb") as file:  # of another user, or locked by a server that lives
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(log.parent)


def _variables(settings: Mapping[str, object]) -> dict[str, str]:
    """Write settings as the environment has them; the server refuses those that it does not have."""
    return {f"PACELINE_{name.upper()}": _text(value) for name, value in settings.items()}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _end(process: "subprocess.Popen[bytes]", folder: Path, owner: int) -> None:
    if os.getpid() != owner:  # a fork has the object, and not the process
        return
    for number, wait_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
        if process.poll() is not None:
            break
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)  # with pip, while the launcher makes its environment
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
    shutil.rmtree(folder, ignore_errors=True)
