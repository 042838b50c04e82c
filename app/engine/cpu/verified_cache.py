"""Cache what a model's first start found: its spec, some of the modules' logits as a check, and packed weights."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from app.config import Activations, WeightsAs
from app.engine.cpu.equivalence import TOLERANCE, distance, trial
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.model_spec import ModelSpec
from app.engine.cpu.packed_file import read_packed, write_packed
from app.engine.cpu.packed_model import PackedModel, pack_model
from app.engine.weights.blocks import Weights
from app.engine.weights.fingerprint import digest
from app.engine.weights.model_cache import read_cached, write_cached
from app.engine.weights.rounding import weights_as

COLUMNS = 64  # of each row of the logits, from all over the vocabulary
LONG_S = 1.0  # packing that takes longer is kept


class VerifiedModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: ModelSpec
    names: tuple[str, ...]  # of the modules' weights: files may hold others, which the modules do not read
    logits: tuple[tuple[float, ...], ...]  # (N, COLUMNS) of the trial, by the model's own modules
    spread: float  # standard deviation of all of them


class VerifiedCache:
    """One model's, in one form.

    The file of packed weights is the model's: one of a changed model, or of another form of its weights, replaces it.
    """

    def __init__(
        self, home: Path, folders: tuple[Path, ...], wanted: WeightsAs, activations: Activations, *, drafts: bool
    ) -> None:
        """`drafts`: it is a drafter, of which less is compared than of a target: they share no file."""
        self._home, self._folders, self._wanted, self._activations = home, folders, wanted, activations
        self._digest = digest(folders, weights=wanted, activations=activations, drafts=drafts)
        name = hashlib.sha256(repr((*map(str, folders), activations, drafts)).encode()).hexdigest()[:24]
        self.file = home / "known" / f"{self._digest}.json"
        self.packed_file = home / "packed" / f"{name}.bin"

    def recall(self, weights: Callable[[], Weights], like: WeightsAs | None = None) -> FusedForward | None:
        """`weights` are read only if they have to be packed.

        `like`: a known form of a drafter, whose spec will do where this form is not known: rounded wrongly, it would
        be right less often, and no text would be another.
        """

        def build(text: str) -> FusedForward:
            known = VerifiedModel.model_validate_json(text)
            forward = self._build(known, weights)
            off = distance(_sample(trial(forward)), torch.tensor(known.logits), known.spread)
            if not off < TOLERANCE[self._activations]:
                self.packed_file.unlink(missing_ok=True)
                raise ValueError(f"the forward's logits are {off:.1e} standard deviations off those of its modules")
            return forward

        if (found := read_cached(self.file, build)) is not None or like is None:
            return found

        def build_like(text: str) -> FusedForward:
            known = VerifiedModel.model_validate_json(text)
            forward = self._build(known, weights)
            self.remember(known.spec, known.names, trial(forward))
            return forward

        compared = VerifiedCache(self._home, self._folders, like, self._activations, drafts=True)
        return read_cached(compared.file, build_like)

    def _build(self, known: VerifiedModel, weights: Callable[[], Weights]) -> FusedForward:
        packed = read_packed(self.packed_file, self._digest)
        if packed is None:
            started, stored = time.perf_counter(), weights()
            named = {name: stored[name] for name in known.names}
            packed = pack_model(known.spec, weights_as(named, self._wanted), self._activations)
            self.keep(packed, time.perf_counter() - started)
        return FusedForward(known.spec, packed)

    def remember(self, spec: ModelSpec, names: tuple[str, ...], expected: torch.Tensor) -> None:
        """`expected`: logits (N, V) float32 of the trial, a target's from its modules; names: of their weights."""
        known = VerifiedModel(spec=spec, names=names, logits=_sample(expected).tolist(), spread=float(expected.std()))
        write_cached(self.file, known.model_dump_json())

    def keep(self, packed: PackedModel, took_s: float) -> None:
        """Keep packed weights if packing took long."""
        if took_s > LONG_S:
            write_packed(self.packed_file, self._digest, packed)


def _sample(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, :: max(1, logits.shape[1] // COLUMNS)][:, :COLUMNS].float()
