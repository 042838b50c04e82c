"""Test a mixture of experts inside vLLM, which Paceline's own engine has not, against unmodified modules."""

import pytest

from tests import fakes
from tests.app.engine.vllm.loaded import loaded
from tests.fakes import Book, characters, record

PROMPTS = [(5, 6, 7, 5, 6, 7, 5, 6), (9,), tuple(range(20))]
TOKENS = 16


@pytest.fixture(scope="module")
def model():
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64}
    return fakes.tiny("mixtral", **sizes)


@pytest.fixture(scope="module")
def target(model, tmp_path_factory):
    with loaded(model, tmp_path_factory.mktemp("model")) as found:
        yield found


@pytest.mark.parametrize("kinds", [(), ("oracle",), ("half", "random")], ids=str)
def test_greedy_text_is_the_models_own(target, model, kinds):
    records = [record(prompt, TOKENS, request_id=f"{kinds} {i}") for i, prompt in enumerate(PROMPTS)]
    expected = [fakes.alone(model, prompt, TOKENS) for prompt in PROMPTS]
    book = Book()
    for one, text in zip(records, expected, strict=True):
        book.write(one, text)
    drafters = characters(book)
    assert fakes.texts(fakes.pipeline(target, [], [drafters[kind] for kind in kinds]), *records) == expected
