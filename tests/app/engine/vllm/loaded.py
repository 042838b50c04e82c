"""Load a model into vLLM for the tests in `apart`, in as many processes as TENSOR_PARALLEL says."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import PreTrainedModel

from app.engine.vllm.load import load_target
from app.engine.vllm.target import VLLMTarget

PROCESSES = int(os.environ.get("TENSOR_PARALLEL", "1"))


@contextmanager
def loaded(model: PreTrainedModel, folder: Path) -> Iterator[VLLMTarget]:
    """Save the model and run it, with a cache of eight of its longest sequences."""
    model.save_pretrained(folder)
    target = load_target(
        folder,
        dtype="float32",
        kv_bytes=lambda longest_bytes: 8 * longest_bytes,
        longest_tokens=256,
        max_sequences=8,
        batch_tokens=512,
        shares=True,
        tensor_parallel=PROCESSES,
    )
    yield target
    target.close()
