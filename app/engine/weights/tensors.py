"""A model's weights by their names, as its files hold them."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import safe_open

from app.errors import ModelRefused

Weights = Mapping[str, torch.Tensor]  # by their names in Hugging Face's modules
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Stored(Mapping[str, torch.Tensor]):
    """Read from safetensors when asked for, in the files' own number format; a tied head is the embedding.

    Raises ModelRefused for a folder without any.
    """

    def __init__(self, folder: Path) -> None:
        files = [safe_open(file, framework="pt") for file in sorted(folder.glob("*.safetensors"))]
        self._places = {name: (file, name) for file in files for name in file.keys()}  # noqa: SIM118 - not a dict
        if not self._places:
            raise ModelRefused(f"{folder} holds no weights in safetensors")
        if EMBEDDING in self._places:
            self._places.setdefault(HEAD, self._places[EMBEDDING])

    def __getitem__(self, name: str) -> torch.Tensor:
        file, stored_as = self._places[name]
        found: torch.Tensor = file.get_tensor(stored_as)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def holds(ours: Weights, theirs: Weights) -> bool:
    """Whether we have all of their weights, number for number; files often hold more, tables of sines for one."""
    return all(name in ours and torch.equal(weight.float(), ours[name].float()) for name, weight in theirs.items())


@lru_cache(maxsize=1)
def embedding_sha256(target: Path) -> str:
    """What a drafter's card names its target's embedding by: the hash of its float32 numbers."""
    return hashlib.sha256(target_embedding(target).numpy().astype("<f4", copy=False).data).hexdigest()


@lru_cache(maxsize=1)
def target_embedding(target: Path) -> torch.Tensor:
    """(V, d) float32, shared by all drafters of a process."""
    weights = Stored(target)
    if EMBEDDING not in weights:
        raise ModelRefused(f"{target} holds no {EMBEDDING}")
    return weights[EMBEDDING].float()
