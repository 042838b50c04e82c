"""Keep a model's packed weights in a file that later starts map: no packing, and one copy for all processes.

The file is a line of JSON, filled up with spaces, and the arrays' bytes.
"""

import logging
import math
import mmap
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from app.engine.cpu.packed_model import Packed, PackedModel
from app.system import make_whole
from kernels.cpu.products.pack import CACHE_LINE

log = logging.getLogger(__name__)


class Place(BaseModel):
    kind: str
    columns: int
    rounds: bool
    dtype: str
    shape: tuple[int, ...]
    first: int  # byte after the line


class Index(BaseModel):
    digest: str
    size: int  # bytes
    places: dict[str, Place]


def write_packed(file: Path, digest: str, packed: PackedModel) -> None:
    """Write atomically; a failure is logged."""
    arrays = {id(one.array): one.array for one in packed.values()}  # head and embedding may be one
    firsts, size = {}, 0
    for key, array in arrays.items():
        firsts[key] = size
        size += array.nbytes + -array.nbytes % CACHE_LINE
    places = {name: _place(one, firsts[id(one.array)]) for name, one in packed.items()}
    line = Index(digest=digest, size=size, places=places).model_dump_json().encode()
    line += b" " * (-(len(line) + 1) % mmap.PAGESIZE) + b"\n"

    def write(scratch: Path) -> None:
        with scratch.open("wb") as out:
            out.write(line)
            for array in arrays.values():
                out.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
                out.write(bytes(-array.nbytes % CACHE_LINE))

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
    except (OSError, ValueError) as error:
        log.warning("%s cannot be used and is made again: %s", file, error)
        return None


def _read(file: Path, digest: str) -> PackedModel | None:
    with file.open("rb") as stream:
        index = Index.model_validate_json(stream.readline())
        start = stream.tell()
    if index.digest != digest:
        return None
    if file.stat().st_size != start + index.size:
        raise ValueError("it is cut off")
    room = np.memmap(file, np.uint8, "r", start)
    return {
        name: Packed(_array(room, place), place.kind, place.columns, place.rounds)
        for name, place in index.places.items()
    }


def _place(one: Packed, first: int) -> Place:
    array = one.array
    return Place(
        kind=one.kind, columns=one.columns, rounds=one.rounds, dtype=array.dtype.name, shape=array.shape, first=first
    )


def _array(room: np.ndarray, place: Place) -> np.ndarray:
    dtype = np.dtype(place.dtype)
    end = place.first + math.prod(place.shape) * dtype.itemsize
    return room[place.first : end].view(dtype).reshape(place.shape)
