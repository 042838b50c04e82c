"""Serve Paceline's pipeline in one process, as the environment's settings say: `serve_paceline.py on|off`."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.config import THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})

from child import Answer, Run, serve

from app.assembly.local import build_local
from bench.records import record_of


def load() -> Run:
    """Build the pipeline; all prompts of a job run at once."""
    pipeline, speculates = build_local(Settings.from_env()), sys.argv[1] == "on"

    def run(prompts: list[list[int]], max_tokens: int) -> Answer:
        records = [record_of(prompt, max_tokens, speculates=speculates) for prompt in prompts]
        for record in records:
            pipeline.store.create(record, limit=len(records))
            pipeline.store.assign(record.id, pipeline.verifier.owner)
        pipeline.verifier.adopt([record.id for record in records])
        while pipeline.verifier.sequences:
            pipeline.step()
        return [list(pipeline.store.snapshot(record.id).tokens) for record in records]

    return run


serve(load)
