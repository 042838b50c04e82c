"""Provide the models of tests: the real default target's folder, and a tiny tokenizer."""

import json
import os
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import decoders, models

from app.config import Settings
from app.engine.weights import resolve

TEST_MODEL = "PACELINE_TEST_MODEL"


@cache
def model_dir() -> Path:
    """Return the default target's folder, converted once; or the one PACELINE_TEST_MODEL names."""
    given = os.environ.get(TEST_MODEL)
    return Path(given) if given else resolve.resolve("smollm2-135m", Settings.from_env().home, lambda _: None)


def byte_fallback_tokenizer(folder: Path) -> Path:
    """Write a SentencePiece-like tokenizer: words with a space mark, and a token for each raw byte."""
    words = ["<unk>", "<s>", "</s>", "▁", "▁Hello", "▁world", "a", "b", "é", "!"]
    words += [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = {word: id_ for id_, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(
        json.dumps({"vocab_size": len(words), "max_position_embeddings": 128, "eos_token_id": [2, 1]})
    )
    return folder
