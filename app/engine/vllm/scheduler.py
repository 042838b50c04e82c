"""Follow Paceline's batches inside vLLM's engine, which loads these two classes by their names."""

from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from app.engine.vllm.choosing import RowRule
from app.state import Verdict


class Silent:
    """Propose nothing: drafts come through the scheduler."""

    def __init__(self, vllm_config: Any) -> None:
        pass

    def load_model(self, model: Any) -> None:
        pass

    def propose(self, sampled: list[Any], *_: Any, **__: Any) -> list[list[int]]:
        return [[] for _ in sampled]


class Steered(Scheduler):
    """Run exactly the rows that are named for the next step; all other requests rest.

    `ends`: by request, where its rows end, drafts included. What the step ran stands in `ran` and `sent`.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.ends: Mapping[str, int] = {}
        self.drafts: Mapping[str, list[int]] = {}
        self.rules: Mapping[str, RowRule] = {}
        self.ran: Mapping[str, int] = {}  # rows, by request
        self.sent: Mapping[str, list[int]] = {}  # drafts: fewer, or others, where vLLM has no rows for them
        self.verdicts: Mapping[str, Verdict] = {}

    def schedule(self, throttle_prefills: bool = False) -> Any:
        for request in self.running:
            name = request.request_id
            request.spec_token_ids = [*self.drafts.get(name, ())]
            if name not in self.ends:
                request.next_decode_eligible_step = self.current_step + 2
        output = super().schedule(throttle_prefills)
        self.sent, self.ran = output.scheduled_spec_decode_tokens, output.num_scheduled_tokens
        output.rules = self.rules
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        self.verdicts = getattr(model_runner_output, "verdicts", {})
        return super().update_from_output(scheduler_output, model_runner_output)

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Both loops of `schedule` ask it for a request's rows."""
        end = self.ends.get(request.request_id)
        if end is None or num_computed_tokens == request.num_tokens - 1:  # it decodes: vLLM may have padded it
            return num_new_tokens
        # More may be cached than was planned: a request that begins alike got its blocks in this very step.
        return max(1, min(num_new_tokens, end - num_computed_tokens))
