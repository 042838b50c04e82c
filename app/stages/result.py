"""Make a request's result of a stored snapshot."""

from app.engine.text.detokenizer import Detokenizer
from app.engine.text.stop_strings import up_to_stop
from app.messages import DrafterStats, Result, SpeculationReport, Timing, Usage
from app.store.protocol import Snapshot


def result(snapshot: Snapshot, tokenizer: Detokenizer, now_s: float) -> Result:
    """Return the request as it stands. `now_s`: wall clock; an ended request is timed up to its end."""
    record, tokens, stats = snapshot.record, snapshot.tokens, snapshot.stats
    return Result(
        id=record.id,
        status=snapshot.status,
        text=up_to_stop(tokenizer.decode(tokens), record.stop),
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
        logprobs=None if record.logprobs is None else snapshot.logprobs,
        error=snapshot.error,
    )


def _timing(snapshot: Snapshot, now_s: float) -> Timing:
    """Return seconds since admission; never negative, though the clocks of two hosts may differ."""
    created_s, first_s = snapshot.record.created_s, snapshot.stats.first_token_s
    until_s = now_s if snapshot.ended_s is None else snapshot.ended_s
    return Timing(
        ttft_s=None if first_s is None else max(0.0, first_s - created_s),
        total_s=max(0.0, until_s - created_s),
    )
