"""Test the whole pipeline in one process: events in order, under every setting of overlap."""

import pytest

from app.config import Settings
from app.messages import FinishReason
from app.pipeline import LocalPipeline
from app.request import GenerateRequest
from tests import fakes
from tests.fakes import Book, characters, record

PLAIN = fakes.tiny()
RUNNER = fakes.served()
PROMPTS = [[(i * 7 + salt) % 50 for i in range(10 + 9 * salt)] for salt in range(4)]


@pytest.fixture(autouse=True)
def _all_pages_come_back():
    yield
    assert RUNNER.pool.num_free == RUNNER.pool.num_pages


def expected(prompt: list[int], max_tokens: int) -> list[int]:
    return fakes.alone(PLAIN, prompt, max_tokens)


def speculating(*names: str, **how) -> tuple[LocalPipeline, Book]:
    """Make a pipeline with drafters of these characters, and the book in which they read."""
    book = Book()
    return fakes.pipeline(how.pop("target", RUNNER), [characters(book)[name] for name in names], **how), book


def test_a_request_is_written_down_as_admitted():
    local = fakes.pipeline(RUNNER)
    found = local.submit(GenerateRequest(prompt="abc", max_tokens=5, seed=3), Settings())
    assert local.store.snapshot(found.id).record == found
    assert (found.prompt_ids, found.max_tokens, found.sampling.seed) == ((0, 0, 1, 2, 1), 5, 3)
    fakes.finish(local)


def test_events_follow_each_other_and_end_with_the_last():
    local, book = speculating("half")
    one = local.submit(GenerateRequest(prompt="abcd", max_tokens=20), Settings())
    book.write(one, expected(list(one.prompt_ids), 20))
    events = list(local.events(one))
    assert [event.offset for event in events] == [
        sum(len(event.tokens) for event in events[:i]) for i in range(len(events))
    ]
    assert [token for event in events for token in event.tokens] == expected(list(one.prompt_ids), 20)
    assert [event.finish_reason for event in events] == [None] * (len(events) - 1) + [FinishReason.LENGTH]
    assert any(len(event.tokens) == 3 for event in events)


def test_an_end_token_inside_a_draft_ends_the_text_there():
    text = expected(PROMPTS[0], 12)
    at = next(i for i in range(3, 12) if text[i] not in text[:i])
    for name in ("oracle", "silent"):
        local, book = speculating(name)
        one = record(PROMPTS[0], 12, eos_ids=(text[at],))
        book.write(one, text)
        assert fakes.texts(local, one) == [text[: at + 1]]
        assert local.store.snapshot("r").finish_reason is FinishReason.STOP


@pytest.mark.parametrize("overlap", ["auto", "none", "halves", "always-halves"])
def test_every_overlap_commits_the_targets_own_text(overlap):
    local, book = speculating("oracle", "half", overlap=overlap, steps_ahead=2)
    records = [record(prompt, 12, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
    for one in records:
        book.write(one, expected(list(one.prompt_ids), 12))
    assert fakes.texts(local, *records) == [expected(prompt, 12) for prompt in PROMPTS]
    assert sum(local.store.snapshot(one.id).stats.accepted for one in records) > 0
