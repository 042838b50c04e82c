"""Load a Hugging Face causal LM, unforked, and choose the fastest equivalent forward."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.config import Activations, WeightsAs
from app.engine.cpu.forward import Forward
from app.engine.cpu.verified_cache import VerifiedCache
from app.engine.weights.blocks import Weights
from app.engine.weights.rounding import weights_as
from app.engine.weights.tensors import Stored
from app.logs import STARTING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Source:
    folders: tuple[Path, ...]  # whose files decide the model's logits
    weights: Callable[[], Weights]
    modules: Callable[[], "PreTrainedModel"]
    in_turn: Path | None = None  # whose config.json describes modules that can read `weights` in turn


def load(
    source: Path | Source,
    wanted: WeightsAs = "stored",
    home: Path | None = None,
    activations: Activations = "float32",
    *,
    drafts: bool = False,
    like: WeightsAs | None = None,
) -> Forward:
    """Load a model. Raises ModelRefused.

    `home` keeps what is measured of it, which makes the next start far shorter. `like`: a form of a drafter that was
    compared with the modules, after which its other forms need not be.
    """
    found = source if isinstance(source, Source) else _in_folder(source)
    cache = VerifiedCache(home, found.folders, wanted, activations, drafts=drafts) if home is not None else None
    if cache is not None and (known := cache.recall(found.weights, like)) is not None:
        return known
    weights = found.weights()
    STARTING.info("reading modules to compare")
    # transformers takes seconds to import, and mostly need not be
    from app.engine.cpu.choose_forward import choose_forward, fuse_in_turn
    from app.engine.weights.hf_reader import build_in_turn

    if found.in_turn is not None:
        modules = build_in_turn(found.in_turn, weights, wanted)
        if (fused := fuse_in_turn(modules, weights_as(weights, wanted), cache, activations)) is not None:
            return fused
    return choose_forward(found.modules(), wanted, weights, cache, activations)


def _in_folder(folder: Path) -> Source:
    def modules() -> "PreTrainedModel":
        from app.engine.weights.hf_reader import read

        return read(folder)

    return Source((folder,), lambda: Stored(folder), modules, folder if any(folder.glob("*.gguf")) else None)
