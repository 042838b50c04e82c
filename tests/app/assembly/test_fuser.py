"""Test which model-free drafters the settings give a fuser."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.assembly.fuser import build_fuser, model_free_names
from app.config import Settings
from app.errors import ModelRefused
from app.messages import DraftJob
from app.request import Sampling
from app.store.memory import MemoryStore

TOKENIZER: Any = SimpleNamespace(sha256="ours", vocab_size=50)


def store(folder, tokenizer: str = "ours") -> Settings:
    np.save(folder / "tokens.npy", np.array([1, 2, 3, 4, 50], np.uint8))
    (folder / "drafter.json").write_text(json.dumps({"tokenizer_sha256": tokenizer}))
    return Settings(phrases=str(folder))


def test_a_store_of_the_targets_tokenizer_drafts_at_every_fuser(tmp_path):
    settings = store(tmp_path)
    assert model_free_names(settings, TOKENIZER) == ("lookup", "suffix", "phrases")
    segment = build_fuser(settings, TOKENIZER, MemoryStore())
    job = DraftJob(
        request_id="r", verifier="v", fuser="f", base=2, start=0, tokens=(2, 3), prompt_length=2, max_draft_tokens=3,
        drafters=("phrases",), sampling=Sampling(), due_s=9.0,
    )  # fmt: skip
    segment.expect([job])
    ((_, tree),) = segment.collect(0.0)
    assert (tree.tokens, tree.proposers) == ((4,), (("phrases",),))


def test_a_store_of_another_tokenizer_is_left_out(tmp_path):
    assert model_free_names(store(tmp_path, "theirs"), TOKENIZER) == ("lookup", "suffix")


def test_no_store_is_allowed_and_an_unknown_name_is_refused(tmp_path):
    assert model_free_names(Settings(phrases="none"), TOKENIZER) == ("lookup", "suffix")
    with pytest.raises(ModelRefused, match="store of phrases '.*' cannot be read"):
        model_free_names(Settings(phrases=str(tmp_path / "nowhere")), TOKENIZER)
