"""Test a short load on a real deployment: every request is served and reported."""

import json
from pathlib import Path

import pytest

from bench.load.run import main
from tests.workers.cluster import Cluster


@pytest.mark.parametrize("words", [["poisson", "--rate", "4"], ["closed", "--streams", "3"]])
def test_a_load_is_served_and_reported(cluster: Cluster, tmp_path: Path, words: list[str]) -> None:
    out = tmp_path / "load.json"
    assert main([*words, "--url", cluster.url, "--seconds", "3", "--max-tokens", "12", "--out", str(out)]) == 0
    loads = json.loads(out.read_text())["loads"]
    assert [one["arm"] for one in loads] == ["on", "off"]
    for one in loads:
        assert one["requests"] >= 3 and one["failed"] == 0, one["errors"]
        assert 0.0 < one["ttft_s"]["p50"] <= one["total_s"]["p50"] and one["tokens_per_s"] > 0.0
    assert loads[1]["drafted_per_round"] == 0.0  # on a busy machine the other may draft nothing either


def test_a_trace_that_is_none_is_refused_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.csv").write_text("nothing\n")
    words = ["trace", "--url", "http://127.0.0.1:9", "--trace", str(tmp_path / "trace.csv")]
    assert main(words) == 2
    assert "trace" in capsys.readouterr().err
