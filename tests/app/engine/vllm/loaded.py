"""Load a model into vLLM for the tests in `apart`, in as many processes as TENSOR_PARALLEL, PIPELINE_PARALLEL say."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import PreTrainedModel

from app.engine.vllm.load import load_target
from app.engine.vllm.target import VLLMTarget

TENSOR_PARALLEL = int(os.environ.get("TENSOR_PARALLEL", "1"))
PIPELINE_PARALLEL = int(os.environ.get("PIPELINE_PARALLEL", "1"))
PROCESSES = TENSOR_PARALLEL * PIPELINE_PARALLEL


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
        tensor_parallel=TENSOR_PARALLEL,
        pipeline_parallel=PIPELINE_PARALLEL,
    )
    yield target
    target.close()
