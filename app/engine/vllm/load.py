"""Load a target into vLLM: a folder by vLLM's own reader, a GGUF file by Paceline's."""

import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from llvmlite import binding

from app.config import home_of
from app.engine.weights.resolve import GGUF
from app.errors import ModelRefused
from app.logs import STARTING

if TYPE_CHECKING:
    from app.engine.vllm.target import VLLMTarget

LONGEST_START_MINUTES = 20
PAGE_TOKENS = 32  # vLLM's block; its CPU kernels take multiples of 32
OURS = {"enable_prefix_caching", "async_scheduling", "scheduler_cls", "worker_cls", "speculative_config"}
NONE: Mapping[str, Any] = {}
ENVIRONMENT = {
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's loop runs in this process
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def load_target(
    folder: Path,
    *,
    dtype: str,
    kv_bytes: Callable[[int], int] | None,
    longest_tokens: int,
    max_sequences: int,
    batch_tokens: int,
    shares: bool,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    arguments: Mapping[str, Any] = NONE,
) -> "VLLMTarget":
    """`kv_bytes`: of the cache, by those of the longest sequence; None: as vLLM sizes it. `arguments`: more of vLLM's;
    with a `node_rank` above 0 this process runs its host's part of a verifier elsewhere, and does not return.

    Raises ModelRefused where vLLM is absent, or another than this engine is written against, or an argument is refused;
    TargetLost where a part ends.
    """
    os.environ.update({**ENVIRONMENT, "VLLM_CACHE_ROOT": str(_compiled_here()), **os.environ})
    if importlib.util.find_spec("vllm") is None:
        raise ModelRefused(
            "PACELINE_ENGINE=vllm, but this Python has no vLLM: name one that has it in PACELINE_VLLM_PYTHON"
        )
    _let_numba_be()
    from app.engine.vllm.contract import missing

    if lacks := missing():
        import vllm

        raise ModelRefused(
            f"vLLM {vllm.__version__} is not the one that this engine is written for; it lacks: {', '.join(lacks)}"
        )
    from vllm.engine.arg_utils import EngineArgs

    from app.engine.vllm.part import run_part
    from app.engine.vllm.target import VLLMTarget, config_of
    from app.engine.vllm.worker import LOAD_FORMAT

    own: dict[str, Any] = {
        "model": str(folder),
        "dtype": dtype,
        "max_model_len": longest_tokens,
        "max_num_seqs": max_sequences,
        "max_num_batched_tokens": batch_tokens,
        "skip_tokenizer_init": True,
        "tensor_parallel_size": tensor_parallel,
        "pipeline_parallel_size": pipeline_parallel,
    }
    usual: dict[str, Any] = {
        "kv_cache_memory_bytes": None if kv_bytes is None else kv_bytes(longest_tokens * _token_bytes(folder, dtype)),
        "block_size": PAGE_TOKENS,
        "enforce_eager": shutil.which("g++") is None,  # without one torch can compile no step
    }
    if (folder / GGUF).is_file():
        usual |= {"load_format": LOAD_FORMAT, "hf_overrides": {"architectures": [_architecture(folder)]}}
    if tensor_parallel * pipeline_parallel > 1:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # else each process wants a NUMA node of its own
        usual["distributed_executor_backend"] = "mp"
    _check(arguments, {field.name for field in fields(EngineArgs)}, own.keys() | OURS)
    with _reporting():
        try:
            args = EngineArgs(**own, **{**usual, **arguments})
            config = config_of(args, shares=shares)
        except (TypeError, ValueError) as error:
            raise ModelRefused(f"vLLM refuses: {error}") from error
        if args.node_rank == 0:
            return VLLMTarget(config, shares=shares)
    run_part(config)


def is_quantised(folder: Path) -> bool:
    """Tell whether the folder's weights are in a format of their own, of which vLLM computes in 16 bits only."""
    return "quantization_config" in json.loads((folder / "config.json").read_text())


def _check(arguments: Mapping[str, Any], known: Set[str], taken: Set[str]) -> None:
    """Raises ModelRefused."""
    for name in arguments:
        if name not in known:
            raise ModelRefused(f"PACELINE_VLLM_ARGUMENTS: vLLM has no argument {name!r}")
        if name in taken:
            raise ModelRefused(f"PACELINE_VLLM_ARGUMENTS: Paceline itself says what {name!r} is")


@contextmanager
def _reporting() -> Iterator[None]:
    """Report each minute that vLLM still starts: who waits gives up a start that has not got on for long."""
    is_over = Event()

    def report() -> None:
        for minute in range(1, LONGEST_START_MINUTES):
            if is_over.wait(60.0):
                break
            STARTING.info("starting vLLM, which compiles for minutes: %d so far", minute)

    Thread(target=report, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _token_bytes(folder: Path, dtype: str) -> int:
    """Return the cache's bytes of a token, at four a number where the dtype is not known here."""
    config = json.loads((folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    digits = 2 if dtype in ("bfloat16", "float16") else 4
    return int(2 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * width * digits)


def _architecture(folder: Path) -> str:
    """Name vLLM's class for a GGUF file's model, which its config.json does not."""
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    return f"{kind.capitalize()}ForCausalLM"


def _compiled_here() -> Path:
    """Name vLLM's folder of compiled steps by this processor: vLLM would run another's code, where homes are shared."""
    about = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    folder = hashlib.sha256(about.encode()).hexdigest()[:12]
    return home_of(os.environ, "XDG_CACHE_HOME", ".cache") / "vllm" / folder


def _let_numba_be() -> None:
    """Shield vLLM's start from llvmlite, whose library returns a C function for `__dict__`, which vLLM reads of every
    module's objects.
    """
    binding.ffi.lib._fntab["__dict__"] = {}
