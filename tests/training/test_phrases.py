"""Test making a store of phrases from answers, and adding to one."""

import json
from pathlib import Path

import numpy as np
import pytest

from app.stages.draft.phrases import FILE
from tests.workers.tiny import make_model
from training.phrases import main


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    make_model(tmp_path / "target")
    monkeypatch.setenv("PACELINE_MODEL", str(tmp_path / "target"))

    def made(name: str, rows: list[dict[str, object]], *flags: str) -> int:
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        arguments = ["training.phrases", "--out", str(tmp_path / name), *flags, str(data)]
        monkeypatch.setattr("sys.argv", arguments)
        return main()

    return made


def texts(folder: Path) -> list[list[int]]:
    ids = np.load(folder / FILE)
    ends = np.flatnonzero(ids == ids.max())
    return [text[text < ids.max()].tolist() for text in np.split(ids, ends) if len(text) > 1]


def row(domain: str, prompt: list[int], answer: list[int]) -> dict[str, object]:
    return {"d": domain, "p": prompt, "g": answer}


def test_a_store_holds_each_text_once_after_the_end_of_its_prompt(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert (
        run("one", [row("qa", list(range(20)), [1, 2]), row("qa", list(range(20)), [1, 2]), row("chat", [3], [4])]) == 0
    )
    assert texts(tmp_path / "one") == [[*range(12, 20), 1, 2], [3, 4]]
    assert json.loads((tmp_path / "one" / "drafter.json").read_text())["tokens"] == {"qa": 4, "chat": 1}


def test_texts_added_to_a_store_follow_its_own(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run("one", [row("qa", [1], [2, 3])])
    assert run("two", [row("qa", [1], [2, 3]), row("code", [5], [6])], "--onto", str(tmp_path / "one")) == 0
    assert texts(tmp_path / "two") == [[1, 2, 3], [5, 6]]
    card = json.loads((tmp_path / "two" / "drafter.json").read_text())
    assert card["tokens"] == {"qa": 4, "code": 1} and card["texts"] == 3


def test_a_store_of_another_tokenizer_is_refused(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    run("one", [row("qa", [1], [2, 3])])
    card = tmp_path / "one" / "drafter.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "tokenizer_sha256": "0"}))
    assert run("two", [row("qa", [5], [6])], "--onto", str(tmp_path / "one")) == 2
    assert "another tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize("rows", [[], [row("qa", [10**6], [1])]])
def test_data_without_text_or_with_unknown_tokens_are_refused(run, rows: list[dict[str, object]]) -> None:  # type: ignore[no-untyped-def]
    assert run("one", rows) == 2
