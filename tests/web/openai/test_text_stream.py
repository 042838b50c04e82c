"""Test growing texts: the parts join to the text and its log-probabilities, in whatever runs."""

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.text.tokenizer import Tokenizer
from app.messages import Record
from app.request import TokenLogprobs
from tests.fakes import Characters, record
from web.openai.text_stream import GrowingText, Part, spelled

WORDS = ("a", "b", "ab", "ba", "abc", "")


class Pieces(Characters):
    """Tokenise into tokens of no to three characters."""

    def decode(self, ids):
        return "".join(WORDS[id_] for id_ in ids)


def grown(one: Record, ids: list[int], bounds: list[int]) -> Part:
    """Join all parts of a text."""
    text = GrowingText(cast(Tokenizer, Pieces()), one)
    cuts = [0, *sorted(bounds), len(ids)]
    parts = []
    for start, end in zip(cuts, cuts[1:], strict=False):
        # each another value
        logprobs = [TokenLogprobs(logprob=-float(i)) for i in range(start, end)]
        parts.append(text.take(ids[start:end], logprobs, is_end=False))
    parts.append(text.take([], [], is_end=True))
    return Part("".join(part.text for part in parts), [one for part in parts for one in part.spoken])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.data(), st.lists(st.integers(0, 5), max_size=14), st.lists(st.text("abc", min_size=1, max_size=4), max_size=2)
)
def test_parts_join_to_the_text_and_its_logprobs(data, ids, stop):
    one = record([1]).model_copy(update={"stop": tuple(stop), "logprobs": 0})
    whole = grown(one, ids, [])
    assert grown(one, ids, data.draw(st.lists(st.integers(0, len(ids)), max_size=5))) == whole
    starts, at = [], 0
    for id_ in ids:
        starts.append(at)
        at += len(WORDS[id_])
    is_stopped = any(text in "".join(WORDS[id_] for id_ in ids) for text in stop)
    expected = [(start, i) for i, start in enumerate(starts) if start < len(whole.text) or not is_stopped]
    assert [(spoken.start, -spoken.logprobs.logprob) for spoken in whole.spoken] == expected
    assert [spoken.token for spoken in whole.spoken] == [ids[i] for _, i in expected]


def test_tokens_are_spelled_as_openai_does(tokenizer: Tokenizer) -> None:
    first, *_ = tokenizer.encode("👩")
    (word,) = tokenizer.encode(" the")
    assert spelled(tokenizer, word) == (" the", list(b" the"))
    text, raw = spelled(tokenizer, first)
    assert raw is not None and text == "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
    with pytest.raises(UnicodeDecodeError):
        bytes(raw).decode()
