"""What a client sees of a request: the one result every door gives back.

Pure functions of tokens and times; reads no store and knows no transport.
"""

from collections.abc import Sequence

from app.engine.text.detokenizer import Detokenizer
from app.engine.text.stop_strings import up_to_stop
from app.messages import FinishReason, Record, Result, SpeculationReport, Stats, Status, Timing, Usage
from app.request import TokenLogprobs


def result(
    record: Record,
    status: Status,
    tokens: Sequence[int],
    finish_reason: FinishReason | None,
    stats: Stats,
    error: str | None,
    tokenizer: Detokenizer,
    now_s: float,  # when the request ended; the present while it runs
    logprobs: Sequence[TokenLogprobs] = (),  # of each token, if they were asked for
) -> Result:
    """The request as it stands, for the CLI, the JSON API and Celery alike."""
    return Result(
        id=record.id,
        status=status,
        text=up_to_stop(tokenizer.decode(tokens), record.stop),
        token_ids=tuple(tokens),
        finish_reason=finish_reason,
        usage=Usage(prompt_tokens=len(record.prompt_ids), completion_tokens=len(tokens)),
        timing=_timing(record, stats, now_s),
        speculation=SpeculationReport(
            rounds=stats.rounds,
            drafted=stats.drafted,
            accepted=stats.accepted,
            mean_accepted_length=len(tokens) / stats.rounds if stats.rounds else 0.0,
            by_drafter=stats.by_drafter,
        ),
        logprobs=None if record.logprobs is None else tuple(logprobs),
        error=error,
    )


def _timing(record: Record, stats: Stats, now_s: float) -> Timing:
    """Seconds since admission; never negative, though the clocks of two hosts may differ."""
    first_s = stats.first_token_s
    return Timing(
        ttft_s=None if first_s is None else max(0.0, first_s - record.created_s),
        total_s=max(0.0, now_s - record.created_s),
    )
