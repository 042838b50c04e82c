"""Compare the installed vLLM with what this engine is written against, without running a model."""

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_model_runner import ExecuteModelState, GPUModelRunner

ROWS = ["self", "request", "num_computed_tokens", "num_new_tokens"]
REQUEST = [
    "request_id", "prompt_token_ids", "mm_features", "sampling_params", "pooling_params", "arrival_time",
    "lora_request", "cache_salt", "data_parallel_rank",
]  # fmt: skip


def missing() -> list[str]:
    """Return what the installed vLLM lacks."""
    return [name for name, holds in _facts() if not holds]


def _facts() -> Iterator[tuple[str, bool]]:
    schedule = inspect.getsource(Scheduler.schedule)
    yield "Scheduler.schedule(throttle_prefills)", _parameters(Scheduler.schedule) == ["self", "throttle_prefills"]
    yield "rows by _reserve_prefill_lookahead", schedule.count("self._reserve_prefill_lookahead(") == 2
    yield "its parameters", _parameters(Scheduler._reserve_prefill_lookahead) == ROWS
    yield "a request can rest", "self.current_step < request.next_decode_eligible_step" in schedule
    yield "drafts are taken once", "request.spec_token_ids = []" in schedule
    yield "drafts go out", "scheduled_spec_decode_tokens[request.request_id] = spec_token_ids" in schedule
    sent = {"scheduled_spec_decode_tokens", "num_scheduled_tokens"}
    yield "SchedulerOutput", sent <= _fields(SchedulerOutput) and not hasattr(SchedulerOutput, "__slots__")
    yield "ModelRunnerOutput", not hasattr(ModelRunnerOutput, "__slots__")
    update = ["self", "scheduler_output", "model_runner_output"]
    yield "Scheduler.update_from_output", _parameters(Scheduler.update_from_output)[:3] == update
    core = {"preprocess_add_request", "reset_prefix_cache", "step"}
    yield "EngineCore", core <= {*dir(EngineCore)}
    yield "InprocClient", {"add_request", "get_output", "abort_requests", "shutdown"} <= {*dir(InprocClient)}
    yield "EngineCoreRequest", _parameters(EngineCoreRequest)[:9] == REQUEST
    request = inspect.getsource(Request)
    parts = ("all_token_ids", "spec_token_ids", "num_computed_tokens")
    yield "Request", all(f"self.{name}" in request for name in parts)
    drafts = {"draft_token_ids", "num_draft_tokens"}
    yield "SpecDecodeMetadata", drafts <= _fields(SpecDecodeMetadata)
    sample = ["self", "logits", "spec_decode_metadata"]
    yield "GPUModelRunner._sample", _parameters(GPUModelRunner._sample) == sample
    called = "self._sample(logits, spec_decode_metadata)" in inspect.getsource(GPUModelRunner.sample_tokens)
    yield "sample_tokens calls it", called
    states = {"sample_hidden_states", "hidden_states"}
    yield "ExecuteModelState", states <= {*ExecuteModelState._fields}
    runner = inspect.getsource(GPUModelRunner)
    arrays = ("discard_request_mask", "num_tokens_no_spec", "query_start_loc", "num_computed_tokens_cpu")
    yield "the runner's arrays", all(name in runner for name in arrays)


def _parameters(call: Any) -> list[str]:
    return [*inspect.signature(call).parameters]


def _fields(kind: type) -> set[str]:
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    return {*getattr(kind, "__struct_fields__", ())}


if __name__ == "__main__":
    print(", ".join(missing()))
