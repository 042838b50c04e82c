"""Generate a target's texts by plain decoding, with its hidden states."""

from collections.abc import Mapping
from collections.abc import Sequence as Listed
from typing import Any

from app.assembly.local import Models, build_local
from app.config import Settings
from app.request import GenerateRequest, SpeculationBounds
from lab.simulate.log import Text

States = list[dict[int, bytes | None]]  # [text][i]: the target's last one when the text had i tokens, from 1 on


def generated(
    settings: Settings, models: Models, prompts: Mapping[str, Listed[str]], **fields: Any
) -> tuple[list[Text], States]:
    """Generate a text for each prompt, by domain; `fields`: others of the requests."""
    pipeline = build_local(settings, models)
    asked = [(domain, prompt) for domain, of_domain in prompts.items() for prompt in of_domain]
    off = SpeculationBounds(enabled=False)
    requests = [GenerateRequest(prompt=prompt, speculation=off, **fields) for _, prompt in asked]
    records = [pipeline.submit(request, settings) for request in requests]
    states: dict[str, dict[int, bytes | None]] = {record.id: {} for record in records}
    while running := pipeline.verifier.sequences.all():
        pipeline.step()
        for sequence in running:
            states[sequence.record.id][sequence.generated] = sequence.kv.state
    ends = [pipeline.store.snapshot(record.id) for record in records]
    texts = [
        Text(domain=domain, prompt_ids=end.record.prompt_ids, tokens=end.tokens)
        for (domain, _), end in zip(asked, ends, strict=True)
    ]
    return texts, [*states.values()]
