"""Stop strings end the text at the same character however it is cut, and are never shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.text.stop_strings import AnswerStream, StopWatch, up_to_stop
from app.engine.text.tokenizer import Tokenizer
from tests.fakes import Characters
from tests.models import byte_fallback_tokenizer, model_dir

often = settings(max_examples=300, deadline=None, derandomize=True)
stops = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3)


class Pieces(Characters):
    """Tokens of one to three characters, so that a token may hold a whole stop string, or the middle of one."""

    WORDS = ("a", "b", "c", "ab", "ba", "abc", "cab", "")

    def decode(self, ids):
        return "".join(self.WORDS[id_] for id_ in ids)


def slowly(text: str, stop: list[str]) -> str:
    """Cut a text by the specification: read characters until the text ends with a stop string."""
    for end in range(1, len(text) + 1):
        found = [one for one in stop if text[:end].endswith(one)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@often
@given(st.text("abc", max_size=30), stops)
def test_the_text_ends_before_the_first_complete_stop_string(text, stop):
    assert up_to_stop(text, stop) == slowly(text, stop)


@pytest.mark.parametrize(
    ("text", "stop", "left"),
    [
        ("one two", ["two"], "one "),
        ("one two", ["three"], "one two"),
        ("abc", ["abc", "b"], "a"),  # "b" is complete first
        ("xab", ["b", "ab"], "x"),  # both at once: the longest
        ("aab", ["ab"], "a"),
        ("stop", ["stop"], ""),
        ("anything", [], "anything"),
    ],
)
def test_the_first_complete_stop_string_counts(text, stop, left):
    assert up_to_stop(text, stop) == left


@often
@given(st.data(), st.lists(st.integers(0, 7), max_size=16), stops)
def test_a_stream_is_the_text_and_shows_no_part_of_a_stop_string(data, ids, stop):
    tokenizer = Pieces()
    whole = up_to_stop(tokenizer.decode(ids), stop)
    stream, shown = AnswerStream(tokenizer, stop), ""
    for start, end in cuts(data, len(ids)):
        shown += stream.feed(ids[start:end])
        assert whole.startswith(shown)
    assert shown + stream.flush() == whole
    assert stream.flush() == ""


@often
@given(st.data(), st.lists(st.integers(0, 7), min_size=1, max_size=16), stops)
def test_a_run_is_cut_at_the_token_that_completes_a_stop_string(data, ids, stop):
    tokenizer = Pieces()
    texts = [tokenizer.decode(ids[: i + 1]) for i in range(len(ids))]
    expected = next((i for i, text in enumerate(texts) if slowly(text, stop) != text), None)
    watch = StopWatch(tokenizer, stop)
    found = None
    for start, end in cuts(data, len(ids)):
        if data.draw(st.booleans()):  # a commit that failed, or a verifier that took over, asks again
            watch.first(ids[:start], 0, ids[start:end], is_end=False)
        if data.draw(st.booleans()):
            watch = StopWatch(tokenizer, stop)
        at = watch.first(ids[:start], 0, ids[start:end], is_end=end == len(ids))
        if at is not None:
            found = start + at
            break
    assert found == expected


def test_a_sequence_that_became_another_of_the_same_length_is_read_anew():
    tokenizer = Pieces()
    ids = list(range(8))
    stop = [tokenizer.decode(ids[2:4])]
    assert stop[0] not in tokenizer.decode([ids[0], ids[0], ids[3]])
    watch = StopWatch(tokenizer, stop)
    assert watch.first([], 0, [ids[0], ids[0]], is_end=False) is None
    assert watch.first([ids[0], ids[2]], 0, [ids[3]], is_end=False) == 0, "not what was read before"


@pytest.fixture(scope="module", params=["byte level", "byte fallback"])
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    return Tokenizer(
        model_dir() if request.param == "byte level" else byte_fallback_tokenizer(tmp_path_factory.mktemp("bytes"))
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_stop_strings_cut_runs_of_real_tokens_too(tokenizer, data):
    """Any tokens, and a stop string of their text; a part of a character is none."""
    ids = data.draw(st.lists(st.integers(0, min(tokenizer.vocab_size, 4000) - 1), min_size=1, max_size=12))
    text = tokenizer.decode(ids)
    start = data.draw(st.integers(0, len(text)))
    stop = [text[start : start + data.draw(st.integers(1, 5))] or "?"]
    watch, stream = StopWatch(tokenizer, stop), AnswerStream(tokenizer, stop)
    at = watch.first([], 0, ids, is_end=True)
    committed = ids if at is None else ids[: at + 1]
    assert (at is None) == (stop[0] not in text)
    streamed = "".join(stream.feed([token]) for token in committed) + stream.flush()
    assert streamed == up_to_stop(tokenizer.decode(committed), stop) == up_to_stop(text, stop)
    assert stop[0] not in streamed


def cuts(data: st.DataObject, length: int) -> list[tuple[int, int]]:
    """Draw runs of any length that make up the whole."""
    bounds = sorted({0, length, *data.draw(st.lists(st.integers(0, length), max_size=6))})
    return list(zip(bounds, bounds[1:], strict=False))
