"""Test that the headlines' figures are drawn from what a study wrote."""

import json
from pathlib import Path

import pytest

from lab.testbeds import figures, run


def study(paper: str, folder: Path) -> None:
    band = {"low": 0.9, "median": 1.0, "high": 1.2}
    reading = {"bands": {"headline": band, "other": band}, "verdicts": {"headline": {"paper": 1.5}}, "worlds": [{}, {}]}
    found = {"readings": {"as stated": reading, "otherwise": reading}}
    (folder / f"testbeds-{paper}-fitted.json").write_text(json.dumps(found))


def test_a_picture_for_each_paper_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for paper in ("cosine", "faser"):
        study(paper, tmp_path)
    assert run.main(["figures", "--out", str(tmp_path), "--pictures", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for paper in ("cosine", "faser"):
        assert (tmp_path / f"testbeds-{paper}.png").read_bytes().startswith(b"\x89PNG")
        assert f"testbeds-{paper}.png" in printed


def test_bands_and_the_papers_number_stand_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    study("cosine", tmp_path)
    drawn: list[figures.pyplot.Figure] = []
    monkeypatch.setattr(figures.pyplot, "close", drawn.append)
    figures.draw(tmp_path, tmp_path, ("cosine",))
    (figure,) = drawn
    first = figure.axes[0]
    lines = [[*map(float, line.get_xdata())] for line in first.lines]
    assert [0.9, 1.2] in lines and [1.0] in lines and [1.5] in lines
    assert [text.get_text() for text in first.get_yticklabels()] == ["headline", "other"]
    monkeypatch.undo()
    figures.pyplot.close(figure)


def test_without_a_study_there_is_an_error_and_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["figures", "--out", str(tmp_path), "--pictures", str(tmp_path)]) == 2
    assert "--fitted" in capsys.readouterr().err
