"""Make the stored record of a task's request."""

from app.messages import Record
from app.request import Sampling, SpeculationBounds


def task_record(request_id: str, created_s: float = 0.0) -> Record:
    return Record(
        id=request_id,
        prompt_ids=(5,),
        max_tokens=50,
        eos_ids=(),
        sampling=Sampling(seed=1),
        speculation=SpeculationBounds(),
        created_s=created_s,
        is_task=True,
    )
