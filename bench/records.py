"""Make the requests that benchmarks put into a store, beneath the API."""

import time
import uuid
from collections.abc import Iterable

from app.messages import Record
from app.request import Sampling, SpeculationBounds


def record_of(
    prompt_ids: Iterable[int], max_tokens: int, *, name: str | None = None, seed: int = 0, speculates: bool = True
) -> Record:
    """Make a greedy request without an end token; `name`: its id, a new one by default."""
    return Record(
        id=name or uuid.uuid4().hex,
        prompt_ids=tuple(prompt_ids),
        max_tokens=max_tokens,
        eos_ids=(),
        sampling=Sampling(temperature=0.0, seed=seed),
        speculation=SpeculationBounds(enabled=speculates),
        created_s=time.time(),
    )
