"""Test how a target is loaded: the memory that its longest request needs, and nothing beyond it."""

from pathlib import Path

import pytest
from transformers import LlamaConfig

from app.assembly.devices import target_runner
from app.config import Settings
from app.engine.kv.pages import bytes_per_page
from app.engine.kv.sizing import PAGE_TOKENS, SLACK_TOKENS
from app.errors import ModelRefused
from tests.workers.tiny import CONTEXT_TOKENS, make_model

PROMPT_TOKENS, NEW_TOKENS = 1800, 200


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a target that reads four times as much as the settings allow a request."""
    return make_model(tmp_path_factory.mktemp("devices") / "target")


def settings(target: Path, spare_pages: int) -> Settings:
    """Return settings with room for one request of 2000 tokens and its drafts, and `spare_pages` more."""
    config = LlamaConfig.from_pretrained(target)
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    page_bytes = bytes_per_page(layers, heads, config.hidden_size // config.num_attention_heads, PAGE_TOKENS)
    pages = (PROMPT_TOKENS + NEW_TOKENS + SLACK_TOKENS) // PAGE_TOKENS + spare_pages
    return Settings(
        model=str(target),
        home=target.parent,
        kv_bytes=pages * page_bytes,
        max_prompt_tokens=PROMPT_TOKENS,
        max_tokens=NEW_TOKENS,
    )


def test_a_cache_for_the_longest_request_suffices(target: Path) -> None:
    runner = target_runner(target, settings(target, 0), CONTEXT_TOKENS)
    assert runner.capacity_tokens == PROMPT_TOKENS + NEW_TOKENS + SLACK_TOKENS < CONTEXT_TOKENS


def test_a_cache_for_less_is_refused(target: Path) -> None:
    with pytest.raises(ModelRefused, match="fewer than one request of 2000 and its drafts; raise PACELINE_KV_BYTES"):
        target_runner(target, settings(target, -1), CONTEXT_TOKENS)
