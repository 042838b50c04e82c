"""Read a model's weights by their names, as its files hold them."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path

import torch
from safetensors import safe_open

from app.engine.weights.blocks import EMBEDDING, HEAD, Blocks, Weight, Weights, dense, take
from app.engine.weights.gguf_file import readers
from app.engine.weights.gguf_header import forget_pages
from app.errors import ModelRefused
from app.system import trim_heap

SAMPLED_ROWS = 64  # of blocks, about
HASHED_ROWS = 2048  # at a time


class Stored(Mapping[str, Weight]):
    """Read a folder's weights lazily. A tied head is the embedding. Raises ModelRefused for none."""

    def __init__(self, folder: Path) -> None:
        self._readers: dict[str, Callable[[], Weight]] = {}
        for file in sorted(folder.glob("*.safetensors")):
            opened = safe_open(file, framework="pt")
            self._readers |= {name: partial(opened.get_tensor, name) for name in opened.keys()}  # noqa: SIM118 - not a dict
        for file in sorted(folder.glob("*.gguf")):
            self._readers |= readers(file)
        if not self._readers:
            raise ModelRefused(f"{folder} holds no weights in safetensors or GGUF")
        if EMBEDDING in self._readers:
            self._readers.setdefault(HEAD, self._readers[EMBEDDING])

    @property
    def is_head_tied(self) -> bool:
        return EMBEDDING in self._readers and self._readers[HEAD] is self._readers[EMBEDDING]

    def __getitem__(self, name: str) -> Weight:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def end_loading(*folders: Path) -> None:
    for folder in folders:
        for file in folder.glob("*.gguf"):
            forget_pages(file)
    stored_embedding.cache_clear()
    trim_heap()


def holds(ours: Weights, theirs: Mapping[str, torch.Tensor]) -> bool:
    """Tell whether modules have our weights; of blocks, which take long to expand, rows all over them are compared."""
    return all(name in ours and _agrees(ours[name], weight) for name, weight in theirs.items())


def _agrees(ours: Weight, theirs: torch.Tensor) -> bool:
    if isinstance(ours, Blocks):
        every = slice(None, None, 1 + len(ours.rows) // SAMPLED_ROWS)
        return len(ours.rows) == len(theirs) and torch.equal(theirs[every].float(), dense(take(ours, every)))
    return torch.equal(theirs.float(), dense(ours))


@lru_cache(maxsize=1)
def embedding_sha256(target: Path) -> str:
    """Hash the target's embedding, as float32: the target's id in a drafter's card."""
    found, weight = hashlib.sha256(), stored_embedding(target)
    size = len(weight.rows) if isinstance(weight, Blocks) else len(weight)
    for first in range(0, size, HASHED_ROWS):  # all at once would be the largest piece of memory of a start
        rows = dense(take(weight, slice(first, first + HASHED_ROWS)))
        found.update(rows.contiguous().numpy().astype("<f4", copy=False).data)
    return found.hexdigest()


@lru_cache(maxsize=1)
def stored_embedding(target: Path) -> Weight:
    """Return (V, d) as the file holds it, shared by all drafters of a process."""
    weights = Stored(target)
    if EMBEDDING not in weights:
        raise ModelRefused(f"{target} holds no {EMBEDDING}")
    return weights[EMBEDDING]
