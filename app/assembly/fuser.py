"""Build the fuser with its model-free drafters; imports no torch."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from app.config import Settings
from app.drafter.replicas import Own, fetcher, none_here
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import drafter_folder
from app.errors import ModelRefused
from app.stages.draft.protocol import Drafter
from app.stages.draft.registry import BUILT_IN, MODEL_FREE, build
from app.store.protocol import Requests

if TYPE_CHECKING:
    from app.fuser.fuser import Fuser

log = logging.getLogger(__name__)


def build_fuser(settings: Settings, tokenizer: Tokenizer, store: Requests, own: Own = none_here) -> "Fuser":
    """Raises ModelRefused. `own` returns the tokens of sequences whose verifier runs in the same process."""
    from app.fuser.fuser import Fuser  # numba: web and control name drafters, and run none

    drafters: list[Drafter] = []
    if settings.plan.model_free:
        folder = _phrases_folder(settings, tokenizer)
        drafters = build()
        if folder is not None:
            from app.stages.draft.phrases import load_phrases  # numba, as above

            drafters.append(load_phrases(folder, tokenizer.vocab_size, settings.home / "phrases"))
    return Fuser(drafters, tokenizer.vocab_size, fetcher(store), own)


def model_free_names(settings: Settings, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Name the drafters that run at every fuser. Raises ModelRefused."""
    if not settings.plan.model_free:
        return ()
    return MODEL_FREE if _phrases_folder(settings, tokenizer) else tuple(BUILT_IN)


def _phrases_folder(settings: Settings, tokenizer: Tokenizer) -> Path | None:
    """Return None for a store of another tokenizer, too."""
    if settings.phrases == "none":
        return None
    folder = drafter_folder(settings.phrases)
    try:
        card = json.loads((folder / "drafter.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelRefused(f"the store of phrases {settings.phrases!r} cannot be read: {error}") from None
    if card.get("tokenizer_sha256") != tokenizer.sha256:
        log.info("the phrases in %s are of another tokenizer than the target: they are left out", folder)
        return None
    return folder
