"""Define the drafter as it is trained: a few layers of the target between rows of its frozen embedding.

With features it also reads the target's state: at the last committed token of a round, h, the target's last normed
hidden state at the position before (the one that chose that token), as W h + b; at all other positions a learnt vector
`absent` stands in for it, because a drafter that goes on from its own guesses has no h for them. It learns from h
scaled to mean 0 and spread 1: some of h's numbers are a hundred times as large as others (SmolLM2), and unscaled they
make the first steps undo what the layers know. The file holds W and b for h unscaled.
"""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from app.engine.weights.blocks import Blocks
from app.engine.weights.families import NotFusable, check_llama_shape
from app.engine.weights.hf_reader import read
from app.engine.weights.tensors import Stored
from app.errors import InvalidRequest, ModelRefused

FEATURES = ("feature.weight", "feature.bias", "absent")
LEAST_SPREAD = 1e-3


def load_target(folder: Path) -> Any:
    """Load the target's modules in float32, frozen. Raises ModelRefused for a model that is not Llama-shaped."""
    target = read(folder).eval()
    try:
        check_llama_shape(target)
    except NotFusable as error:
        raise ModelRefused(f"no drafter can be made of {folder}'s layers: {error}") from error
    target.requires_grad_(False)
    return target


class Student(nn.Module):
    """A trainable drafter: layers, norm, feature (W, b), absent. Embedding and head are the target's, frozen."""

    def __init__(self, target: Any, layers: list[int], head_ids: list[int], has_features: bool) -> None:
        """Copy these layers of the target; negative numbers count from its end."""
        super().__init__()
        self.mean: torch.Tensor
        self.spread: torch.Tensor
        embedding = target.model.embed_tokens
        self._frozen = {"embedding": embedding, "rope": target.model.rotary_emb}  # in a dict: no part of our state
        self.layers = nn.ModuleList(copy.deepcopy(target.model.layers[i]) for i in layers)
        for index, layer in enumerate(self.layers):
            layer.get_submodule("self_attn").layer_idx = index  # type: ignore[assignment]
        self.norm = copy.deepcopy(target.model.norm)
        self.width: int = embedding.weight.shape[1]
        self.has_features = has_features
        if has_features:
            self.feature = nn.Linear(self.width, self.width)
            nn.init.zeros_(self.feature.weight)  # starts as the drafter without features
            nn.init.zeros_(self.feature.bias)
            self.absent = nn.Parameter(torch.zeros(self.width))
            self.register_buffer("mean", torch.zeros(self.width), persistent=False)
            self.register_buffer("spread", torch.ones(self.width), persistent=False)
        self.requires_grad_(True)
        self.head_ids = torch.tensor(head_ids)  # (Vh,) int64
        self.head = embedding.weight.detach()[self.head_ids]  # (Vh, d)
        self.target_head = target.lm_head.weight.detach()[self.head_ids]  # (Vh, d), the same where weights are tied

    def forward(
        self,
        ids: torch.Tensor,  # (B, T) int64
        states: torch.Tensor,  # (B, T, d) float32, h of the position before; read where `present`
        present: torch.Tensor,  # (B, T) bool
    ) -> torch.Tensor:
        """Return normed hidden states, (B, T, d) float32; times `head` they are logits over `head_ids`."""
        hidden = self._frozen["embedding"](ids)
        if self.has_features:
            hidden = hidden + torch.where(
                present[..., None], self.feature((states - self.mean) / self.spread), self.absent
            )
        positions = torch.arange(ids.shape[1])[None]
        rope = self._frozen["rope"](hidden, positions)
        for layer in self.layers:
            out = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=rope)
            hidden = out[0] if isinstance(out, tuple) else out
        normed: torch.Tensor = self.norm(hidden)
        return normed

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights as the drafter's file names them, for h unscaled.

        All are float16, layers and norm below `model.`; `head_ids` is int32.
        """
        found = {name: tensor.detach() for name, tensor in self.state_dict().items()}
        if self.has_features:
            found["feature.weight"] = found["feature.weight"] / self.spread
            found["feature.bias"] = found["feature.bias"] - found["feature.weight"] @ self.mean
        named = {name if name in FEATURES else f"model.{name}": tensor for name, tensor in found.items()}
        halves = {name: tensor.half().contiguous() for name, tensor in named.items()}
        return {**halves, "head_ids": self.head_ids.to(torch.int32)}

    def scramble(self, seed: int) -> None:
        """Replace the layers' matrices by noise of the same spread."""
        noise = torch.Generator().manual_seed(seed)
        for tensor in self.layers.state_dict().values():
            if tensor.dim() > 1:
                tensor.copy_(torch.randn(tensor.shape, generator=noise) * tensor.std())

    def scale_to(self, states: torch.Tensor) -> None:
        """Scale features by the mean and spread of these states, (N, d) float32."""
        self.mean = states.mean(0)
        self.spread = states.std(0) + LEAST_SPREAD

    def start_from(self, weights: dict[str, torch.Tensor]) -> None:
        """Load a drafter's weights; feature weights that either side lacks are skipped. Raises InvalidRequest for
        weights of another shape."""
        ours = self.state_dict()
        theirs = {n.removeprefix("model."): t.float() for n, t in weights.items() if n != "head_ids"}
        if self.has_features and "feature.weight" in theirs:
            theirs["feature.bias"] = theirs["feature.bias"] + theirs["feature.weight"] @ self.mean
            theirs["feature.weight"] = theirs["feature.weight"] * self.spread
        off = [n for n in ours.keys() ^ theirs.keys() if n not in FEATURES]
        off += [n for n in ours.keys() & theirs.keys() if ours[n].shape != theirs[n].shape]
        if off:
            raise InvalidRequest("init", f"that drafter is of another shape than this target's: {sorted(off)[0]}")
        self.load_state_dict({**ours, **{n: t for n, t in theirs.items() if n in ours}})


def drafter_weights(folder: Path, embedding: str, tokenizer: str) -> tuple[dict[str, torch.Tensor], int]:
    """Read the weights and the number of layers of a drafter to start from.

    `embedding`, `tokenizer`: the target's `embedding_sha256` and `tokenizer_sha256`, which its card must
    not contradict. Raises InvalidRequest.
    """
    card = folder / "drafter.json"
    try:
        stored = Stored(folder)
    except ModelRefused:
        stored = None
    if stored is None or not card.is_file():
        raise InvalidRequest("init", f"{folder} holds no drafter that was trained here")
    about = _card(card)
    if about.get("tokenizer_sha256") != tokenizer or about.get("embedding_sha256", embedding) != embedding:
        raise InvalidRequest("init", f"the drafter in {folder} is of another target")
    weights = {name: weight.dense() if isinstance(weight, Blocks) else weight for name, weight in stored.items()}
    if "head_ids" not in weights:
        raise InvalidRequest("init", f"the drafter in {folder} has a head of its own")
    layers: int = AutoConfig.from_pretrained(folder, local_files_only=True).num_hidden_layers
    return weights, layers


def embedding_sha256(target: Any) -> str:
    """Hash the target's embedding, (V, d), as float32 numbers, little-endian, row by row (sha256)."""
    weight = target.model.embed_tokens.weight.detach().float().contiguous()
    return hashlib.sha256(weight.numpy().astype("<f4", copy=False)).hexdigest()


def _card(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise InvalidRequest("init", f"{path} is not JSON") from error
    return value if isinstance(value, dict) else {}
