"""Test that the settings decide whether requests with a common prefix share its cache."""

from pathlib import Path

import pytest

from app.assembly.local import build_local
from app.config import Settings
from app.request import GenerateRequest
from tests.workers.tiny import make_model


@pytest.mark.parametrize("is_on", [True, False])
def test_the_prefix_cache_can_be_left_out(tmp_path: Path, is_on: bool) -> None:
    make_model(tmp_path / "target")
    settings = Settings(
        model=str(tmp_path / "target"), home=tmp_path, drafters=(), phrases="none", kv_bytes=2**23, prefix_cache=is_on
    )
    pipeline = build_local(settings)
    texts = []
    for _ in range(2):
        record = pipeline.submit(GenerateRequest(prompt="over and over " * 5, raw=True, max_tokens=4), settings)
        texts.append([token for event in pipeline.events(record) for token in event.tokens])
    assert texts[0] == texts[1] and len(texts[0]) == 4
    assert (pipeline.verifier.stats.reused_tokens > 0) == is_on
