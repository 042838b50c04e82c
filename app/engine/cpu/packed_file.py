"""Keep a model's packed weights in a file that later starts map: no packing, and one copy for all processes.

The file is a line of JSON, filled up with spaces, and the arrays' bytes.
"""

import logging
import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel

from app.engine.cpu.packed_model import Packed, PackedModel
from app.system import make_whole
from kernels.cpu.products.pack import CACHE_LINE

log = logging.getLogger(__name__)


class Place(NamedTuple):
    kind: str
    columns: int
    row_form: int
    dtype: str
    shape: tuple[int, ...]
    first: int  # byte after the line


class Index(BaseModel):
    digest: str
    size: int  # bytes
    places: dict[str, Place]


def write_packed(file: Path, digest: str, packed: PackedModel) -> None:
    """Write atomically; a failure is logged."""
    places: dict[str, Place] = {}
    firsts: dict[int, int] = {}  # by array: head and embedding may be one
    size = 0
    for name, (array, kind, columns, row_form) in packed.items():
        if id(array) not in firsts:
            firsts[id(array)] = size
            size += array.nbytes + -array.nbytes % CACHE_LINE
        places[name] = Place(kind, columns, row_form, array.dtype.name, array.shape, firsts[id(array)])
    line = Index(digest=digest, size=size, places=places).model_dump_json().encode()
    line += b" " * (-(len(line) + 1) % mmap.PAGESIZE) + b"\n"

    def write(scratch: Path) -> None:
        with scratch.open("wb") as out:
            out.write(line)
            for name, place in places.items():
                out.seek(len(line) + place.first)
                out.write(np.ascontiguousarray(packed[name].array).data)
            out.truncate(len(line) + size)

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        make_whole(file, write)
    except OSError as error:  # a full disk: the next start packs again
        log.warning("%s cannot be kept: %s", file, error)


def read_packed(file: Path, digest: str) -> PackedModel | None:
    """None without a file of this digest, or if it is damaged (logged)."""
    try:
        return _read(file, digest)
    except FileNotFoundError:
        return None
    except (OSError, TypeError, ValueError) as error:
        log.warning("%s cannot be used and is made again: %s", file, error)
        return None


def _read(file: Path, digest: str) -> PackedModel | None:
    with file.open("rb") as stream:
        index = Index.model_validate_json(stream.readline())
        start = stream.tell()
        if index.digest != digest:
            return None
        if os.fstat(stream.fileno()).st_size != start + index.size:
            raise ValueError("it is cut off")
        room = np.memmap(stream, np.uint8, "r", start)
    return {
        name: Packed(np.ndarray(shape, dtype, room.data, first), kind, columns, row_form)
        for name, (kind, columns, row_form, dtype, shape, first) in index.places.items()
    }
