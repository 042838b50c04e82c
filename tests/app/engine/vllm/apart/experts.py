"""Test a mixture of experts inside vLLM, which Paceline's own engine has not, against unmodified modules."""

import os

import pytest

from app.engine.vllm.load import load_target
from tests import fakes
from tests.fakes import Book, characters, record

PROMPTS = [(5, 6, 7, 5, 6, 7, 5, 6), (9,), tuple(range(20))]
TOKENS = 16


@pytest.fixture(scope="module")
def model():
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64, "sliding_window": None}
    return fakes.tiny("mixtral", hidden_size=64, num_attention_heads=2, num_key_value_heads=1, **experts)


@pytest.fixture(scope="module")
def target(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    found = load_target(
        folder,
        dtype="float32",
        kv_bytes=lambda longest_bytes: 8 * longest_bytes,
        longest_tokens=256,
        max_sequences=8,
        batch_tokens=512,
        shares=True,
        tensor_parallel=int(os.environ.get("TENSOR_PARALLEL", "1")),
    )
    yield found
    found.close()


@pytest.mark.parametrize("kinds", [(), ("oracle",), ("half", "random")], ids=str)
def test_greedy_text_is_the_models_own(target, model, kinds):
    records = [record(prompt, TOKENS, request_id=f"{kinds} {i}") for i, prompt in enumerate(PROMPTS)]
    expected = [fakes.alone(model, prompt, TOKENS) for prompt in PROMPTS]
    book = Book()
    for one, text in zip(records, expected, strict=True):
        book.write(one, text)
    drafters = characters(book)
    assert fakes.texts(fakes.pipeline(target, [], [drafters[kind] for kind in kinds]), *records) == expected
