"""Test the benchmarks' command: the environment of those with arms."""

import os
from types import SimpleNamespace

import pytest

from bench.__main__ import main


@pytest.mark.parametrize(("name", "cache"), [("pruning", "0"), ("load", "1")])
def test_benchmarks_with_arms_run_without_the_prefix_cache(
    name: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_PREFIX_CACHE", "1")
    seen: list[str] = []
    module = SimpleNamespace(main=lambda words: seen.append(os.environ["PACELINE_PREFIX_CACHE"]) or 0)
    monkeypatch.setattr("bench.__main__.importlib.import_module", lambda _: module)
    assert main([name]) == 0
    assert seen == [cache]
