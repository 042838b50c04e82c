"""Make a request's result of a stored snapshot."""

from app.answer_form import ToolCall
from app.engine.text.answer_parts import PartStream, calls_of
from app.engine.text.stop_strings import up_to_stop
from app.engine.text.tokenizer import Tokenizer
from app.messages import DrafterStats, Record, Result, SpeculationReport, Timing, Usage
from app.store.protocol import Snapshot


def result(snapshot: Snapshot, tokenizer: Tokenizer, now_s: float) -> Result:
    """Return the request as it stands. `now_s`: wall clock; an ended request is timed up to its end."""
    record, tokens, stats = snapshot.record, snapshot.tokens, snapshot.stats
    text = up_to_stop(tokenizer.decode(tokens), record.stop)
    return Result(
        id=record.id,
        status=snapshot.status,
        text=text,
        token_ids=tokens,
        finish_reason=snapshot.finish_reason,
        usage=Usage(prompt_tokens=len(record.prompt_ids), completion_tokens=len(tokens)),
        timing=_timing(snapshot, now_s),
        speculation=SpeculationReport(
            rounds=stats.rounds,
            drafted=stats.drafted,
            accepted=stats.accepted,
            mean_accepted_length=len(tokens) / stats.rounds if stats.rounds else 0.0,
            by_drafter={
                name: DrafterStats(drafted=own.drafted, accepted=own.accepted) for name, own in stats.by_drafter.items()
            },
        ),
        tool_calls=_calls(text, record, tokenizer) if record.calls else None,
        logprobs=None if record.logprobs is None else snapshot.logprobs,
        prompt_logprobs=None if record.prompt_logprobs is None else snapshot.prompt_logprobs,
        error=snapshot.error,
    )


def _calls(text: str, record: Record, tokenizer: Tokenizer) -> tuple[ToolCall, ...]:
    parts = PartStream.of(record, tokenizer).feed(text, is_end=True)
    return calls_of(parts.calls)


def _timing(snapshot: Snapshot, now_s: float) -> Timing:
    """Return seconds since admission; never negative, though the clocks of two hosts may differ."""
    created_s, first_s = snapshot.record.created_s, snapshot.stats.first_token_s
    until_s = now_s if snapshot.ended_s is None else snapshot.ended_s
    return Timing(
        ttft_s=None if first_s is None else max(0.0, first_s - created_s),
        total_s=max(0.0, until_s - created_s),
    )
