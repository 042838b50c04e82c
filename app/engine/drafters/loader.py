"""Load a drafter's model for a target.

With `"embedding": "target"` in its drafter.json it has only layers: embedding and head are rows of the target's
embedding, the head's those of the tokens in `head_ids`.
"""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from app.config import Activations, WeightsAs
from app.engine.cpu.forward import Forward
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.load import Source, load
from app.engine.drafters.features import Features, features_of
from app.engine.drafters.guesser import ModelGuesser
from app.engine.weights.blocks import EMBEDDING, HEAD, Weights, dense, take
from app.engine.weights.tensors import Stored, embedding_sha256, stored_embedding
from app.errors import ModelRefused, NoIntegerProducts

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Parts:
    weights: Weights  # by the names of a causal LM's modules, embedding and trimmed head among them
    head_ids: torch.Tensor  # (Vh,) int64, the token each row of the head stands for
    features: Features | None


def load_guesser(
    folder: Path,
    target: Path,
    *,
    kv_bytes: int,
    page_tokens: int,
    weights: WeightsAs = "stored",
    home: Path | None = None,
    activations: Activations = "float32",
    like: WeightsAs | None = None,
) -> ModelGuesser:
    """`like`: see `load`. Raises ModelRefused."""
    card = card_of(folder)
    if card.get("embedding") != "target":
        forward = _forward(folder, weights, home, activations, like)
        guesser = ModelGuesser(forward, None, kv_bytes=kv_bytes, page_tokens=page_tokens, weights=weights)
    else:
        parts = parts_of(folder, target, card.get("embedding_sha256"))
        source = Source((folder, target), lambda: parts.weights, partial(modules_of, folder, parts), folder)
        forward = _forward(source, weights, home, activations, like)
        if parts.features and not isinstance(forward, FusedForward):
            raise ModelRefused(f"{folder} reads the target's hidden states, which only Llama-shaped drafters can")
        memory = {"kv_bytes": kv_bytes, "page_tokens": page_tokens}
        guesser = ModelGuesser(forward, parts.head_ids, **memory, features=parts.features, weights=weights)
    guesser.check()
    return guesser


def _forward(
    source: Path | Source, weights: WeightsAs, home: Path | None, activations: Activations, like: WeightsAs | None
) -> Forward:
    try:
        return load(source, weights, home, activations, drafts=True, like=like)
    except NoIntegerProducts:
        return load(source, weights, home, drafts=True)


def card_of(folder: Path) -> dict[str, Any]:
    file = folder / "drafter.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def weights_of(folder: Path, target: Path) -> Weights:
    card = card_of(folder)
    if card.get("embedding") != "target":
        return Stored(folder)
    return parts_of(folder, target, card.get("embedding_sha256")).weights


def parts_of(folder: Path, target: Path, wanted: str | None) -> Parts:
    """Read a drafter with the target's embedding; weights stay as the files hold them.

    `wanted`: the hash of the embedding it was distilled on. Raises ModelRefused if the target's differs.
    """
    if wanted is not None and embedding_sha256(target) != wanted:
        raise ModelRefused(f"{folder} was distilled from another target: its embedding differs")
    stored = dict(Stored(folder))
    head_ids = dense(stored.pop("head_ids")).long()
    features = features_of(stored)
    embedding = stored_embedding(target)  # (V, d)
    return Parts({**stored, EMBEDDING: embedding, HEAD: take(embedding, head_ids.numpy())}, head_ids, features)


def modules_of(folder: Path, parts: Parts, dtype: torch.dtype = torch.float32) -> "PreTrainedModel":
    from app.engine.weights.hf_reader import build  # transformers takes seconds to import, and mostly need not be

    return build(folder, {name: dense(weight).to(dtype) for name, weight in parts.weights.items()})
