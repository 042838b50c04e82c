"""Test the head of each report."""

import pytest

from bench.report_header import heading


def test_a_report_names_the_plan_and_what_replaces_parts_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_PLAN", '{base = "cosine", fusion = "tree"}')
    found = heading("bench load", ["--rates", "4"])
    assert found["command"] == "./paceline bench load --rates 4"
    assert (found["plan"], found["overrides"]) == ("cosine", {"fusion": "tree"})
