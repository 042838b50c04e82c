"""Read a model's weights by their names, as its files hold them.

A folder goes in, of safetensors or with a GGUF file; weights come out. Knows neither modules nor
forwards.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path

import torch
from safetensors import safe_open

from app.engine.weights.blocks import EMBEDDING, HEAD, Weight, Weights, dense
from app.engine.weights.gguf_file import readers
from app.errors import ModelRefused


class Stored(Mapping[str, Weight]):
    """The weights of a folder, read when looked up, in the files' own types.

    A tied head is the embedding. Raises ModelRefused for a folder without any.
    """

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
        """Return whether the head is the embedding."""
        return EMBEDDING in self._readers and self._readers[HEAD] is self._readers[EMBEDDING]

    def __getitem__(self, name: str) -> Weight:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def holds(ours: Weights, theirs: Mapping[str, torch.Tensor]) -> bool:
    """Tell whether `ours` has all of `theirs`, number for number, whatever the types.

    Files often hold more: tables of sines, for one.
    """
    return all(name in ours and torch.equal(weight.float(), dense(ours[name])) for name, weight in theirs.items())


@lru_cache(maxsize=1)
def embedding_sha256(target: Path) -> str:
    """Hash the target's embedding, as float32, by which a drafter's card names its target."""
    return hashlib.sha256(target_embedding(target).numpy().astype("<f4", copy=False).data).hexdigest()


@lru_cache(maxsize=1)
def target_embedding(target: Path) -> torch.Tensor:
    """Return the target's embedding, (V, d) float32, shared by all drafters of a process.

    Raises ModelRefused where it has none by that name.
    """
    return dense(stored_embedding(target))


def stored_embedding(target: Path) -> Weight:
    """Return the target's embedding (V, d) as its file holds it. Raises ModelRefused where it has none by that name."""
    weights = Stored(target)
    if EMBEDDING not in weights:
        raise ModelRefused(f"{target} holds no {EMBEDDING}")
    return weights[EMBEDDING]
