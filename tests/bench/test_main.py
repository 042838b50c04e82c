"""Test the benchmarks' command: the environment of the usual comparison, whose arms have the same prompts."""

import os
from types import SimpleNamespace

import pytest

from bench.__main__ import main


@pytest.mark.parametrize(("words", "cache"), [([], "0"), (["streams"], "1")])
def test_the_comparison_runs_without_the_prefix_cache(
    words: list[str], cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_PREFIX_CACHE", "1")
    seen: list[str] = []

    def note(*_: object, **__: object) -> int:
        seen.append(os.environ["PACELINE_PREFIX_CACHE"])
        return 0

    monkeypatch.setattr("bench.__main__.compare", note)
    monkeypatch.setattr("bench.__main__.importlib.import_module", lambda _: SimpleNamespace(main=note))
    assert main(words) == 0
    assert seen == [cache]
