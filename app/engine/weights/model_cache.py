"""Cache measurements of a model on disk.

A file is named by a fingerprint of its inputs, and begins with a checksum of the rest.
"""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from app.system import write_whole

log = logging.getLogger(__name__)
T = TypeVar("T")


def read_cached(file: Path, build: Callable[[str], T]) -> T | None:
    """None without a file, or if `build` refuses its text (logged)."""
    try:
        return build(_intact(file.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        log.warning("%s cannot be used and is made again: %s", file, error)
        return None


def write_cached(file: Path, text: str) -> None:
    """Write atomically; a failure is logged."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, with_checksum(text))
    except OSError as error:  # a full disk: the next start finds it out again
        log.warning("%s cannot be kept: %s", file, error)


def with_checksum(text: str) -> str:
    return f"{_checksum(text)}\n{text}"


def _intact(content: str) -> str:
    checksum, _, text = content.partition("\n")
    if checksum != _checksum(text):
        raise ValueError("it is damaged")
    return text


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
