"""A model's weights by their names, as its files hold them."""

from collections.abc import Iterator, Mapping
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
