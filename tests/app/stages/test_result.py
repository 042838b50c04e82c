"""Test the result of a request, from its snapshot."""

from typing import Any

import pytest

from app.engine.text.tokenizer import Tokenizer
from app.messages import FinishReason, Stats, Status
from app.stages.result import result
from app.store.protocol import Snapshot
from tests.models import model_dir
from tests.records import record

RECORD = record((5, 6, 7), 9, eos_ids=(2,), created_s=100.0)


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(model_dir())


def snapshot(**changes: Any) -> Snapshot:
    """Make a request that runs and has no tokens yet, except for `changes`."""
    facts: dict[str, Any] = {"status": Status.ACTIVE, "tokens": (), "logprobs": (), "finish_reason": None}
    facts |= {"error": None, "stats": Stats(), "owner": "", "strikes": 0, "ended_s": None}
    return Snapshot(record=RECORD, **{**facts, **changes})


def test_a_finished_request_has_a_full_result(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("one two three four")
    stats = Stats(rounds=2, drafted=6, accepted=2, first_token_s=100.5, last_token_s=102.0)
    end = {"status": Status.DONE, "finish_reason": FinishReason.STOP, "ended_s": 103.0}
    got = result(snapshot(tokens=tuple(ids), stats=stats, **end), byte_level, 200.0)
    assert (got.id, got.status, got.text, got.token_ids) == ("r", "done", "one two three four", tuple(ids))
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (3, 4)
    assert (got.timing.ttft_s, got.timing.total_s) == (0.5, 3.0)
    assert got.speculation.mean_accepted_length == 2.0


def test_a_request_without_tokens_yet_has_a_result_too(byte_level: Tokenizer) -> None:
    got = result(snapshot(), byte_level, 99.0)  # a clock that runs behind
    assert (got.text, got.finish_reason, got.timing.ttft_s, got.timing.total_s) == ("", None, None, 0.0)
    assert got.speculation.mean_accepted_length == 0.0
