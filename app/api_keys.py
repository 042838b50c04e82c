"""Make, store and find API keys. Their file holds a line of JSON for each, with a hash in place of the key."""

import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, ValidationError

from app.errors import InvalidRequest, KeysUnreadable, validation_message
from app.messages import PUBLIC_TENANT
from app.request import Message
from app.system import make_whole

PREFIX = "pk-"
NAME = r"^[A-Za-z0-9_.-]{1,64}$"


class ApiKey(Message):
    """A key. Requests of one tenant share what is learnt from them, and see each other."""

    name: str = Field(pattern=NAME)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    tenant: str = Field(pattern=NAME)
    rate_per_minute: int | None = Field(None, ge=1, description="texts asked for within any minute; absent: no limit")
    concurrent: int | None = Field(None, ge=1, description="texts under way at once; absent: no limit")


class Keyring:
    """Find keys in a file; a removed key is refused from the next call on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[tuple[int, ...], tuple[ApiKey, ...]] = ((), ())
        self._current()

    def find(self, presented: str) -> ApiKey | None:
        """Find the presented key. Raises KeysUnreadable."""
        digest = _digest(presented)
        found = None
        for key in self._current():  # compares all keys in constant time, so that the duration reveals nothing
            if hmac.compare_digest(digest, key.sha256):
                found = key
        return found

    def _current(self) -> tuple[ApiKey, ...]:
        try:
            stat = self._path.stat()
        except OSError as error:
            raise KeysUnreadable(self._path, error.strerror or "cannot be read") from error
        version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        known, keys = self._read
        if version != known:
            keys = read_keys(self._path)
            self._read = (version, keys)
        return keys


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Read all keys of a file. Raises KeysUnreadable, also for one wrong line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise KeysUnreadable(path, getattr(error, "strerror", None) or "cannot be read") from error
    keys = []
    for number, line in enumerate(lines, start=1):
        try:
            keys.append(ApiKey.model_validate_json(line))
        except ValidationError as error:
            raise KeysUnreadable(path, f"line {number} is not a valid key") from error
    return tuple(keys)


def add_key(
    path: Path,
    name: str,
    *,
    tenant: str | None = None,
    rate_per_minute: int | None = None,
    concurrent: int | None = None,
) -> str:
    """Make a key, store its hash and return it. Without `tenant` the key's name is its tenant.

    Raises InvalidRequest, KeysUnreadable.
    """
    if name == PUBLIC_TENANT and tenant is None:
        raise InvalidRequest("name", f"{name!r} is the tenant of calls without a key: choose another name or a tenant")
    text = PREFIX + secrets.token_urlsafe(32)
    try:
        key = ApiKey(
            name=name,
            sha256=_digest(text),
            tenant=name if tenant is None else tenant,
            rate_per_minute=rate_per_minute,
            concurrent=concurrent,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidRequest(str(first["loc"][0]), validation_message(first)) from error
    with _changing(path) as keys:
        if any(known.name == name for known in keys):
            raise InvalidRequest("name", f"a key named {name!r} exists already")
        _write(path, [*keys, key])
    return text


def remove_key(path: Path, name: str) -> None:
    with _changing(path) as keys:
        rest = [key for key in keys if key.name != name]
        if len(rest) == len(keys):
            raise InvalidRequest("name", f"no key is named {name!r}")
        _write(path, rest)


@contextmanager
def _changing(path: Path) -> Iterator[tuple[ApiKey, ...]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield read_keys(path) if path.exists() else ()


def _write(path: Path, keys: Sequence[ApiKey]) -> None:
    text = "".join(f"{key.model_dump_json()}\n" for key in keys)

    def write(scratch: Path) -> None:
        scratch.unlink(missing_ok=True)  # left by a killed command, it may have another mode
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)

    make_whole(path, write)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
