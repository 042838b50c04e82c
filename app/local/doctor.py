"""`paceline doctor`: check an installation for each known problem. Leaves nothing changed."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement

from app.api_keys import read_keys
from app.config import ROOT, Settings
from app.engine.kv.sizing import CPU_PART, available_bytes
from app.engine.weights.drafter_files import drafters_problems
from app.engine.weights.resolve import (
    FREE_BYTES,
    GGUF_SUFFIX,
    KNOWN,
    MANIFEST,
    check_folder,
    check_gguf,
    damaged,
    fetched_folder,
    place_of,
)
from app.errors import KeysUnreadable, PacelineError
from app.local.health import check
from app.local.instance import Instance
from app.local.ports import FIRST_PORT, is_free
from app.local.redis_server import find_server, no_answer
from app.local.vllm_environment import LOCK, NEEDED_BYTES, is_made
from app.system import processor

VENV = ROOT / ".venv"  # that of ./paceline
MEND = f"if paceline made {sys.prefix}, remove it and run again"
MODEL_BYTES = 2_500_000_000  # of a verifier with the default target, beside its KV cache
CPUINFO = Path("/proc/cpuinfo")
CONTRACT = "app.engine.vllm.contract"  # prints what the installed vLLM lacks
PROBE = "from kernels.cpu.products.packed_linear import is_exact; print(is_exact())"


class Level(StrEnum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    text: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.level:<4}  {self.text}" + (f"\n      -> {self.mend}" if self.mend else "")


Check = Callable[[Settings, Instance], Finding]


def examine(settings: Settings, instance: Instance, checks: Sequence[Check] | None = None) -> list[Finding]:
    return [_guarded(one, settings, instance) for one in (CHECKS if checks is None else checks)]


def _guarded(one: Check, settings: Settings, instance: Instance) -> Finding:
    try:
        return one(settings, instance)
    except (PacelineError, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        name = one.__name__.strip("_").replace("_", " ")
        return Finding(Level.FAIL, f"{name}: {error}", "")


def _python(settings: Settings, instance: Instance) -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding(Level.OK, f"Python {found} ({sys.executable})")


def _packages(settings: Settings, instance: Instance) -> Finding:
    wrong = [text for line in _required() if (text := _package_problem(Requirement(line)))]
    if wrong:
        return Finding(Level.FAIL, f"packages: {', '.join(wrong)}", MEND)
    return Finding(Level.OK, "packages are those of requirements.txt")


def _required() -> list[str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines())
    return [line for line in lines if line]


def _package_problem(requirement: Requirement) -> str | None:
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None  # for another machine, or for an extra
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is missing"
    return None if requirement.specifier.contains(found, prereleases=True) else f"{requirement.name} is {found}"


def _disk(settings: Settings, instance: Instance) -> Finding:
    free = shutil.disk_usage(_existing(settings.home)).free
    text = f"{free / 1e9:.1f} GB free on the disk of {settings.home}"
    if free < FREE_BYTES and not _is_fetched(settings):
        return Finding(Level.FAIL, text, f"fetching the model needs {FREE_BYTES / 1e9:.1f} GB; or set PACELINE_HOME")
    return Finding(Level.OK if free > FREE_BYTES else Level.WARN, text)


def _folders(settings: Settings, instance: Instance) -> Finding:
    """Write a file in each folder that is written to."""
    packages = [VENV] * (Path(sys.prefix) == VENV)
    wrong = {}
    for folder in (settings.state, settings.home, *packages):
        try:
            with tempfile.NamedTemporaryFile(dir=_existing(folder), buffering=0) as file:
                file.write(b"paceline")
        except OSError as error:
            wrong[folder] = f"{folder} cannot be written to: {error.strerror}"
    if not wrong:
        return Finding(Level.OK, f"{', '.join(map(str, (settings.state, settings.home, *packages)))} can be written to")
    spare = {VENV, *[settings.home] * _is_fetched(settings)}  # without them the next start is slower
    mend = "make it writable, or name others by PACELINE_STATE and PACELINE_HOME"
    return Finding(Level.WARN if wrong.keys() <= spare else Level.FAIL, "; ".join(wrong.values()), mend)


def _is_fetched(settings: Settings) -> bool:
    return (fetched_folder(settings.model, settings.home) / MANIFEST).is_file()


def _existing(folder: Path) -> Path:
    return next(one for one in (folder, *folder.absolute().parents) if one.exists())


def _memory(settings: Settings, instance: Instance) -> Finding:
    available = available_bytes()
    if available is None:
        return Finding(Level.OK, "memory: not known on this system")
    cache = int(available / CPU_PART) if settings.kv_bytes is None else settings.kv_bytes
    needed = MODEL_BYTES + cache
    text = f"{available / 1e9:.1f} GB of memory available, about {needed / 1e9:.1f} wanted at most"
    if available >= needed:
        return Finding(Level.OK, text)
    return Finding(Level.WARN, text, "end other programs, or set PACELINE_KV_BYTES lower")


def _port(settings: Settings, instance: Instance) -> Finding:
    if is_free(FIRST_PORT) or instance.running() is not None:
        return Finding(Level.OK, f"port {FIRST_PORT} is free or used by this instance")
    return Finding(Level.WARN, f"port {FIRST_PORT} is taken", "`up` takes the next free one; or choose with --port")


def _redis(settings: Settings, instance: Instance) -> Finding:
    if settings.redis_url is None:
        server = find_server()
        done = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10, check=True)
        return Finding(Level.OK, f"embedded Redis: {done.stdout.split(' sha')[0].strip()}")
    if (silent := no_answer(settings.redis_url)) is not None:
        return Finding(Level.FAIL, f"PACELINE_REDIS_URL: {silent}", "start that Redis, or unset the variable")
    return Finding(Level.OK, "the Redis at PACELINE_REDIS_URL answers")


def _model(settings: Settings, instance: Instance) -> Finding:
    if settings.model not in KNOWN:
        if (place := place_of(settings)).suffix == GGUF_SUFFIX:
            check_gguf(place)
        else:
            check_folder(place, settings.engine)
        return Finding(Level.OK, f"model {settings.model}")
    folder = fetched_folder(settings.model, settings.home)
    if not _is_fetched(settings):
        return Finding(Level.OK, f"model {settings.model} is not fetched yet; `up` fetches it")
    wrong = damaged(folder)
    if wrong:
        return Finding(Level.FAIL, f"{folder}: damaged: {', '.join(wrong)}", f"remove it: rm -r {folder}")
    return Finding(Level.OK, f"model {settings.model} in {folder}, with the expected hashes")


def _drafters(settings: Settings, instance: Instance) -> Finding:
    if found := drafters_problems(settings, place_of(settings)):
        return Finding(Level.FAIL, f"drafters: {'; '.join(found)}", "name other drafters, or none")
    return Finding(Level.OK, f"drafters: {', '.join(settings.drafters) or 'none'}, with the target's tokenizer")


def _keys(settings: Settings, instance: Instance) -> Finding:
    if settings.keys is None:
        return Finding(Level.OK, "no API key is needed; `up` listens on loopback alone")
    try:
        keys = read_keys(settings.keys)
    except KeysUnreadable as error:
        return Finding(
            Level.FAIL, f"{error}; every call is refused", "`paceline keys add NAME`, or unset PACELINE_KEYS"
        )
    return Finding(Level.OK, f"{len(keys)} API keys in {settings.keys}")


def _instance(settings: Settings, instance: Instance) -> Finding:
    state = instance.read()
    if state is None:
        return Finding(Level.OK, f"instance {instance.name!r} is not running")
    if not state.supervisor.alive():
        mend = f"`./paceline down --instance {instance.name}` or the next `up` cleans up"
        return Finding(
            Level.WARN,
            f"instance {instance.name!r}: its supervisor (pid {state.supervisor.pid}) is dead",
            mend,
        )
    health = check(instance.name, state, settings.lease_s)
    if health.ready:
        return Finding(Level.OK, f"instance {instance.name!r} is ready at {state.url}")
    return Finding(
        Level.FAIL if state.ready else Level.WARN,
        f"instance {instance.name!r} is not ready: {'; '.join(health.problems)}",
        f"see the logs in {instance.logs}",
    )


def _processor(settings: Settings, instance: Instance) -> Finding:
    flags = set(CPUINFO.read_text().split()) if CPUINFO.exists() else set()
    features = [name for name in ("avx2", "avx512f", "amx_bf16", "asimd") if name in flags]
    # In a process of its own: torch takes seconds and memory, which this command need not keep.
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )
    text = f"processor: {processor()}, {' '.join(features) or 'no known vector unit'}"
    if done.returncode:
        return Finding(Level.FAIL, f"{text}: {done.stderr.strip().splitlines()[-1]}", MEND)
    if done.stdout.strip() != "True":
        mend = "texts may depend on the other requests of a batch; use another machine, and report this one"
        return Finding(Level.WARN, f"{text}; a row's result depends on the rows beside it", mend)
    if "fpu" in flags and not flags >= {"avx2", "fma"}:
        mend = "texts stay exact; use a processor with AVX2 and FMA"
        return Finding(Level.WARN, f"{text}; without AVX2 and FMA, matrix products take many times as long", mend)
    return Finding(Level.OK, f"{text}; a row's result does not depend on the rows beside it")


def _engine(settings: Settings, instance: Instance) -> Finding:
    if settings.engine != "vllm":
        return Finding(Level.OK, "engine: Paceline's own")
    python = settings.vllm_python
    if python is None:
        if is_made(settings.home):
            return Finding(Level.OK, f"engine: vLLM, its environment is in {settings.home}")
        free = shutil.disk_usage(_existing(settings.home)).free
        text = f"engine: vLLM, whose environment `up` makes first: {NEEDED_BYTES / 1e9:.0f} GB in {settings.home}"
        if free < NEEDED_BYTES:
            mend = "name another place by PACELINE_HOME, or an environment by PACELINE_VLLM_PYTHON"
            return Finding(Level.FAIL, f"{text}, where {free / 1e9:.1f} are free", mend)
        return Finding(Level.OK, text)
    mend = f"PACELINE_VLLM_PYTHON: an environment with the packages of {LOCK.relative_to(ROOT)}"
    done = subprocess.run([python, "-m", CONTRACT], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    if lacking := done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]:
        return Finding(Level.FAIL, f"engine: vLLM of {python}: {lacking}", mend)
    return Finding(Level.OK, f"engine: vLLM of {python}")


CHECKS: tuple[Check, ...] = (
    _python,
    _packages,
    _disk,
    _folders,
    _memory,
    _port,
    _redis,
    _model,
    _drafters,
    _keys,
    _instance,
    _engine,
    _processor,
)
