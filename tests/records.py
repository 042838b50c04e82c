"""Make records of requests and jobs of drafters; nothing here loads torch."""

from collections.abc import Iterable, Sequence
from typing import Any

from app.messages import DraftJob, Record
from app.request import Sampling, SpeculationBounds


def record(
    prompt_ids: Iterable[int],
    max_tokens: int = 16,
    *,
    request_id: str = "r",
    sampling: Sampling | None = None,
    speculation: SpeculationBounds | None = None,
    eos_ids: tuple[int, ...] = (),
    created_s: float = 0.0,
    **rest: Any,
) -> Record:
    """Make an admitted request's record."""
    return Record(
        id=request_id,
        prompt_ids=tuple(prompt_ids),
        max_tokens=max_tokens,
        eos_ids=eos_ids,
        sampling=sampling or Sampling(seed=0),
        speculation=speculation or SpeculationBounds(),
        created_s=created_s,
        **rest,
    )


def draft_job(
    request_id: str, tokens: Sequence[int], drafters: tuple[str, ...] = ("a",), start: int = 0, **rest: Any
) -> DraftJob:
    """Make a job of the verifier `v` for a drafter node and the fuser `f`; `tokens` are those from `start` on."""
    usual: dict[str, Any] = {"verifier": "v", "fuser": "f", "prompt_length": 1, "max_draft_tokens": 4, "due_s": 9.0}
    return DraftJob(
        **{
            **usual,
            "request_id": request_id,
            "base": start + len(tokens),
            "start": start,
            "tokens": tuple(tokens),
            "drafters": drafters,
            "sampling": Sampling(),
            **rest,
        }
    )
