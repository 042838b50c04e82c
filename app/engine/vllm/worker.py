"""Choose each request's tokens in vLLM's workers, by Paceline's rule; vLLM loads the class by its name."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.platforms import current_platform
from vllm.v1.outputs import SamplerOutput

from app.engine.vllm.choosing import RowRule, choose, score
from app.engine.vllm.scheduler import Silent
from app.engine.weights.blocks import HEAD, dense
from app.engine.weights.tensors import Stored
from app.state import Verdict

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker

LOAD_FORMAT = "paceline"
WARMED_TOKENS = 64  # of a first step on a CPU, which compiles for any number
NO_TOKEN = -1  # vLLM's mark of a place behind a request's last token


@register_model_loader(LOAD_FORMAT)
class GGUFLoader(BaseModelLoader):
    """Give vLLM the weights of a GGUF file, dequantised, by their names in transformers."""

    def download_model(self, model_config: Any) -> None:
        pass

    def load_weights(self, model: Any, model_config: Any) -> None:
        stored = Stored(Path(model_config.model))
        names = [name for name in stored if not (name == HEAD and stored.is_head_tied)]
        model.load_weights((name, dense(stored[name])) for name in names)


class Worker(PlatformWorker):
    def init_device(self) -> None:
        super().init_device()
        _let_compiled_steps_load()
        runner = self.model_runner
        if not hasattr(runner, "drafter"):  # vLLM asks for it in each of a pipeline's stages
            runner.drafter = Silent(self.vllm_config)
        runner._sample = self._sample
        runner.sample_tokens = partial(self._sample_tokens, runner.sample_tokens)
        self._rules: dict[str, RowRule] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._states: torch.Tensor | None = None

    def determine_available_memory(self) -> int:
        """Warm up; on a CPU with few tokens: the KV cache's size is given, and the largest step may take minutes.

        Stages of a pipeline make room for states here, for the largest step.
        """
        runner, most = self.model_runner, self.model_runner.max_num_tokens
        if current_platform.is_cpu() and self.parallel_config.pipeline_parallel_size == 1:
            runner.max_num_tokens = min(most, WARMED_TOKENS)
        found: int = super().determine_available_memory()
        runner.max_num_tokens = most
        return found

    def execute_model(self, scheduler_output: Any) -> Any:
        self._rules, self._verdicts = getattr(scheduler_output, "rules", {}), {}
        return super().execute_model(scheduler_output)

    def forget_step(self) -> None:
        """Clear what a failed step has left."""
        self.model_runner.execute_model_state = None

    def _sample_tokens(self, plain: Any, grammar_output: Any) -> Any:
        state = self.model_runner.execute_model_state
        if state is not None:
            self._states = state.sample_hidden_states
            self._score(state.hidden_states)
        output = plain(grammar_output)
        if output is not None:
            output.verdicts = self._verdicts
        return output

    def _sample(self, logits: torch.Tensor, metadata: Any) -> SamplerOutput:
        """Replace the runner's own; `logits`: (rows, V), of each request's last token and of its drafts."""
        runner, batch, states = self.model_runner, self.model_runner.input_batch, self._states
        assert states is not None
        batch.update_async_output_token_ids()
        counts = [0] * batch.num_reqs if metadata is None else metadata.num_draft_tokens
        drafted = [] if metadata is None else metadata.draft_token_ids.tolist()
        is_chunk = runner.discard_request_mask.np
        answers, row = [], 0
        for i, name in enumerate(batch.req_ids):
            rule, count = self._rules.get(name), counts[i]
            own = slice(row, row + count + 1)
            drafts, drafted, row = drafted[:count], drafted[count:], own.stop
            if is_chunk[i] or rule is None or rule.scores is not None:
                answers.append([0])
                continue
            tokens = batch.token_ids_cpu[i, : batch.num_tokens_no_spec[i]].tolist()
            verdict = self._verdicts[name] = choose(rule, tokens, drafts, logits[own], states[own])
            answers.append(verdict.tokens or [0])  # where no token follows, the request ends
        width = max(map(len, answers))
        padded = [answer + [NO_TOKEN] * (width - len(answer)) for answer in answers]
        sampled = torch.tensor(padded, dtype=torch.int32, device=logits.device)
        return SamplerOutput(sampled_token_ids=sampled, logprobs_tensors=None)

    def _score(self, hidden_states: torch.Tensor) -> None:
        """Score the prompts' tokens behind the rows of this step: `hidden_states` (rows, d), what the head reads."""
        batch, starts = self.model_runner.input_batch, self.model_runner.query_start_loc.np
        for i, name in enumerate(batch.req_ids):
            rule = self._rules.get(name)
            if rule is None or rule.scores is None:
                continue
            rows = hidden_states[int(starts[i]) : int(starts[i + 1])]
            first = int(batch.num_computed_tokens_cpu[i]) + 1
            tokens = batch.token_ids_cpu[i, first : first + len(rows)].tolist()
            logits = self.model_runner.model.compute_logits(rows)
            nodes = [*range(1, len(rows))]
            self._verdicts[name] = Verdict(nodes, [], score(tokens, logits, rule.scores))


def _let_compiled_steps_load() -> None:
    """Let vLLM read the steps that an earlier start has compiled: on a CPU they are a plain function, of which vLLM
    0.32 wants a method, and without it compiles again for minutes.
    """
    plain: Any = torch.compiler.load_compiled_function

    def load(*args: Any, **more: Any) -> Any:
        found = plain(*args, **more)
        steps = found._artifacts.compiled_fn
        steps.finalize_loading = getattr(steps, "finalize_loading", lambda config: None)
        return found

    torch.compiler.load_compiled_function = load
