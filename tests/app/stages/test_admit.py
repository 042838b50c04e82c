"""Test admission: refusals by the model and the settings, and defaults for what is left open."""

from pathlib import Path
from typing import Any

import pytest

from app.config import Settings
from app.engine.text.call_syntax import END_OF_THINK, THINK
from app.engine.text.tokenizer import Tokenizer
from app.errors import InvalidRequest
from app.messages import Record
from app.request import ChatMessage, GenerateRequest, SpeculationBounds
from app.stages.admit import admit
from tests.app.engine.text.test_tool_calls import TEMPLATES, byte_tokenizer
from tests.models import byte_fallback_tokenizer, model_dir


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(model_dir())


def admitted(tokenizer: Tokenizer, settings: Settings | None = None, **fields: Any) -> Record:
    request = GenerateRequest(**fields)
    return admit(request, tokenizer, settings or Settings(), request_id="r", tenant="t", now_s=12.5)


def refused_field(tokenizer: Tokenizer, settings: Settings | None = None, **fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        admitted(tokenizer, settings, **fields)
    return caught.value.field


def test_a_prompt_is_one_user_turn(tokenizer: Tokenizer) -> None:
    record = admitted(tokenizer, prompt="Hi")
    assert record.prompt_ids == admitted(tokenizer, messages=[{"role": "user", "content": "Hi"}]).prompt_ids
    assert record.prompt_ids == tuple(tokenizer.chat([ChatMessage(role="user", content="Hi")]))
    assert (record.id, record.tenant, record.created_s, record.eos_ids) == ("r", "t", 12.5, (2,))


def test_a_raw_prompt_has_no_template(tokenizer: Tokenizer) -> None:
    assert admitted(tokenizer, prompt="Hi", raw=True).prompt_ids == tuple(tokenizer.encode("Hi"))


def test_parameters_arrive_unchanged(tokenizer: Tokenizer) -> None:
    record = admitted(
        tokenizer, prompt="x", temperature=0.7, top_p=0.9, seed=5, logit_bias={3: -1.5}, speculation=False
    )
    assert (record.sampling.temperature, record.sampling.top_p, record.sampling.seed) == (0.7, 0.9, 5)
    assert record.sampling.logit_bias == {3: -1.5}
    assert not record.speculation.enabled


def test_draws_a_seed_only_when_none_is_given(tokenizer: Tokenizer) -> None:
    seeds = {admitted(tokenizer, prompt="x").sampling.seed for _ in range(4)}
    assert len(seeds) == 4 and None not in seeds
    assert admitted(tokenizer, prompt="x", seed=0).sampling.seed == 0


def test_the_longest_prompt_fits_and_one_token_more_does_not(tokenizer: Tokenizer) -> None:
    settings = Settings(max_prompt_tokens=10)
    assert len(admitted(tokenizer, settings, prompt=" a" * 10, raw=True).prompt_ids) == 10
    assert refused_field(tokenizer, settings, prompt=" a" * 11, raw=True) == "prompt"
    assert refused_field(tokenizer, settings, messages=[{"role": "user", "content": " a" * 11}]) == "messages"


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": " a" * 40_000},
        {"prompt": " a" * 40_000, "raw": True},
        {"messages": [{"role": "user", "content": " a" * 40_000}]},
    ],
)
def test_a_text_far_too_long_is_refused_by_its_beginning(tokenizer: Tokenizer, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="must have at most 10 tokens, and has more than") as caught:
        admitted(tokenizer, Settings(max_prompt_tokens=10), **fields)
    assert caught.value.field in fields


def test_the_context_bounds_prompt_and_answer_together(tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_fallback_tokenizer(tmp_path))  # a context of 128
    assert admitted(tokenizer, prompt="a" * 100, raw=True, max_tokens=500).max_tokens == 28
    assert admitted(tokenizer, prompt="a" * 127, raw=True, max_tokens=500).max_tokens == 1
    assert refused_field(tokenizer, prompt="a" * 128, raw=True) == "prompt"


def test_refuses_more_tokens_than_the_settings_allow(tokenizer: Tokenizer) -> None:
    settings = Settings(max_tokens=50)
    assert admitted(tokenizer, settings, prompt="x", max_tokens=50).max_tokens == 50
    assert refused_field(tokenizer, settings, prompt="x", max_tokens=51) == "max_tokens"


def test_refuses_token_ids_outside_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert refused_field(tokenizer, prompt="x", logit_bias={49152: 1.0}) == "logit_bias"
    assert refused_field(tokenizer, prompt="x", allowed_token_ids=(1, 49152)) == "allowed_token_ids"
    assert admitted(tokenizer, prompt="x", allowed_token_ids=(49151,)).sampling.allowed_token_ids == (49151,)


def test_an_unknown_drafter_is_refused_with_the_names_of_the_known(tokenizer: Tokenizer) -> None:
    request = GenerateRequest(prompt="x", speculation=SpeculationBounds(drafters=("lookup", "smal")))
    how: dict[str, Any] = {"request_id": "r", "tenant": "t", "now_s": 1.0}
    with pytest.raises(InvalidRequest, match="'smal' does not exist here; the drafters are lookup, small") as caught:
        admit(request, tokenizer, Settings(), **how, drafters={"small", "lookup"})
    assert caught.value.field == "speculation.drafters"
    assert admit(request, tokenizer, Settings(), **how, drafters={"smal", "lookup"}).speculation == request.speculation
    assert admit(request, tokenizer, Settings(), **how).speculation == request.speculation, "any name passes"


def test_a_budget_of_thinking_counts_where_the_template_thinks(tokenizer: Tokenizer, tmp_path: Path) -> None:
    thinking = byte_tokenizer(tmp_path / "a", TEMPLATES["deepseek"], (THINK, END_OF_THINK))
    assert [admitted(thinking, prompt="a", thinking_token_budget=n).most_thinking for n in (-1, 0)] == [None, 0]
    assert admitted(tokenizer, prompt="a", thinking_token_budget=0).most_thinking is None
    markless = byte_tokenizer(tmp_path / "b", TEMPLATES["deepseek"])
    assert refused_field(markless, prompt="a", thinking_token_budget=0) == "thinking_token_budget"
