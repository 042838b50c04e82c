"""Generate in this process, without a running instance, by the same pipeline."""

import time
from collections.abc import Callable

from app.assembly.local import build_local
from app.config import Settings
from app.engine.text.stop_strings import AnswerStream
from app.errors import GenerationFailed
from app.messages import Result
from app.request import GenerateRequest
from app.stages.result import result


def generate(request: GenerateRequest, settings: Settings, on_text: Callable[[str], None] | None = None) -> Result:
    """Load the models, run the request, pass its text to `on_text` as it comes.

    Raises ModelRefused, InvalidRequest, GenerationFailed.
    """
    pipeline = build_local(settings)
    record = pipeline.submit(request, settings)
    stream = AnswerStream(pipeline.tokenizer, record.stop)
    for event in pipeline.events(record):
        text = stream.feed(event.tokens) + (stream.flush() if event.finish_reason else "")
        if on_text and text:
            on_text(text)
    end = pipeline.store.snapshot(record.id)
    if end.error:
        raise GenerationFailed(end.error)
    return result(end, pipeline.tokenizer, time.time())
