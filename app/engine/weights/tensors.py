"""Read a model's weights by their names, as its files hold them.

A folder of safetensors goes in, tensors come out. Knows neither modules nor forwards.
"""

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
    """The weights of a folder, read when looked up, in the files' own dtype.

    A tied head is the embedding. Raises ModelRefused for a folder without any.
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
    """Tell whether `ours` has all of `theirs`, number for number, whatever the dtypes.

    Files often hold more: tables of sines, for one.
    """
    return all(name in ours and torch.equal(weight.float(), ours[name].float()) for name, weight in theirs.items())


@lru_cache(maxsize=1)
def embedding_sha256(target: Path) -> str:
    """Hash the target's embedding, as float32, by which a drafter's card names its target."""
    return hashlib.sha256(target_embedding(target).numpy().astype("<f4", copy=False).data).hexdigest()


@lru_cache(maxsize=1)
def target_embedding(target: Path) -> torch.Tensor:
    """Return the target's embedding, (V, d) float32, shared by all drafters of a process.

    Raises ModelRefused where it has none by that name.
    """
    weights = Stored(target)
    if EMBEDDING not in weights:
        raise ModelRefused(f"{target} holds no {EMBEDDING}")
    return weights[EMBEDDING].float()
