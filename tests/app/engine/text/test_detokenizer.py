"""Streamed text is the whole text, in pieces that never split a character, from any token on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.text.detokenizer import TextStream
from app.engine.text.tokenizer import Tokenizer
from tests.models import byte_fallback_tokenizer, model_dir

TEXT = "Größe 👩‍👩‍👧‍👦 日本語 <|im_end|>  naïve\n\n\tc 🏳️‍🌈 ok"


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(model_dir())


@pytest.fixture(scope="session")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_fallback_tokenizer(tmp_path_factory.mktemp("byte-fallback")))


def streamed(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    stream = TextStream(tokenizer)
    bounds = [0, *sorted(cuts), len(ids)]
    deltas = [stream.feed(ids[start:end]) for start, end in zip(bounds, bounds[1:], strict=False)]
    return [*deltas, stream.flush()]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), ids=st.lists(st.integers(0, 49151), max_size=24))
def test_deltas_together_are_the_text(data: st.DataObject, ids: list[int], byte_level: Tokenizer) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    assert "".join(streamed(byte_level, ids, cuts)) == byte_level.decode(ids)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), ids=st.lists(st.integers(0, 265), max_size=24))
def test_deltas_together_are_the_text_with_byte_tokens(
    data: st.DataObject, ids: list[int], byte_fallback: Tokenizer
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    assert "".join(streamed(byte_fallback, ids, cuts)) == byte_fallback.decode(ids)


def test_a_character_comes_whole_with_its_last_token(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("👩‍🚀")
    assert len(ids) > 4  # several tokens a character
    pieces = TextStream(byte_level).pieces(ids)
    assert "" in pieces and "".join(pieces) == "👩‍🚀"
    assert not any("\ufffd" in piece for piece in pieces)


def test_flush_shows_bytes_that_never_became_a_character(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("ok 👩")[:-1]
    stream = TextStream(byte_level)
    text = "".join(stream.pieces(ids)) + stream.flush()
    assert text == byte_level.decode(ids) and text.endswith("\ufffd")
    assert stream.flush() == ""


def test_a_stream_primed_with_earlier_tokens_goes_on_where_they_ended(byte_level: Tokenizer) -> None:
    ids = byte_level.encode(TEXT)
    for offset in range(len(ids) + 1):
        first, second = TextStream(byte_level), TextStream(byte_level)
        before = "".join(first.pieces(ids[:offset]))
        second.feed(ids[:offset])
        assert before + "".join(second.pieces(ids[offset:])) + second.flush() == byte_level.decode(ids)
