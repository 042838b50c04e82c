"""Identify a target by 16 hex digits of its weights, their arithmetic and its tokenizer."""

import hashlib
import json
from pathlib import Path

from app.config import Settings
from app.engine.weights.fingerprint import digest, weight_files
from app.engine.weights.gguf_file import types
from app.engine.weights.model_cache import read_cached, write_cached

FLOATS = {"F32", "F16", "BF16"}
PLACES = {"node_rank", "master_addr", "master_port"}  # of vLLM's processes, which change no token


def target_id(folder: Path, settings: Settings, tokenizer_sha256: str, device: str) -> str:
    about = {
        "weights": _contents(folder, settings.home),
        "rounded": None if settings.weights in ("stored", "float32") else settings.weights,
        "activations": _activations(folder, settings),
        "arithmetic": _on_cpu(folder, settings) if device == "cpu" else _on_device(device, settings),
        **({"engine": _of_vllm(settings)} if settings.engine == "vllm" else {}),
        "tokenizer": tokenizer_sha256,
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def _activations(folder: Path, settings: Settings) -> str:
    rounds_stored = settings.activations == "int8" and settings.weights == "stored"
    if rounds_stored and any(kind.endswith("_K") for kind in _kinds(folder)):
        return "int8 with K types"
    return settings.activations


def _on_cpu(folder: Path, settings: Settings) -> str:
    """A model whose own modules run has neither such products nor splits, but only loading it would tell."""
    if settings.engine == "vllm":
        return "float32"
    of_floats = settings.weights == "float32" or settings.weights == "stored" and _kinds(folder) <= FLOATS
    products = "" if settings.activations == "int8" or of_floats else ", blocks of integers apart"
    pages = "" if settings.kv_dtype == "float32" else f", {settings.kv_dtype} pages"
    return f"float32{products}, splits of 128 and 512 keys{pages}"


def _kinds(folder: Path) -> set[str]:
    return {kind for file in weight_files(folder) if file.suffix == ".gguf" for kind in types(file)}


def _on_device(device: str, settings: Settings) -> list[object]:
    logits = [] if settings.gpu_dtype == "float32" else ["float32 logits"]
    return [device, settings.gpu_dtype, settings.gpu_exact, *logits]


def _of_vllm(settings: Settings) -> list[object]:
    from vllm import __version__

    more = {name: value for name, value in json.loads(settings.vllm_arguments).items() if name not in PLACES}
    parallel = [settings.tensor_parallel, settings.pipeline_parallel]
    return ["vllm", __version__, settings.vllm_dtype, *parallel, *([more] if more else [])]


def _contents(folder: Path, home: Path) -> str:
    file = home / "known" / f"contents-{digest([folder])}.txt"
    if (known := read_cached(file, str)) is not None:
        return known
    found = hashlib.sha256()
    for path in (folder / "config.json", *weight_files(folder)):
        with path.open("rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    write_cached(file, found.hexdigest())
    return found.hexdigest()
