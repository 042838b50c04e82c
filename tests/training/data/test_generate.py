"""Test the target's answers: same texts and states as its modules compute, and no row lost to a kill."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.errors import InvalidRequest
from tests.training.conftest import MAX_TOKENS, PROMPTS
from training.data.generate import asks, generate, load_engine
from training.data.rows import Row, RowFile
from training.model.student import load_target
from training.prompts.draw import DOMAINS, TEMPLATES


def test_every_prompt_has_a_row_and_most_are_greedy(rows: list[Row]) -> None:
    assert len(rows) == PROMPTS * len(DOMAINS)
    assert {row.domain for row in rows} == set(DOMAINS)
    assert 0.4 < sum(row.is_greedy for row in rows) / len(rows) < 0.9


@torch.inference_mode()
def test_greedy_rows_and_all_states_equal_the_modules_own(target: Path, rows: list[Row]) -> None:
    model: Any = load_target(target)
    for row in rows:
        hidden = model.model(torch.tensor([row.tokens[:-1]])).last_hidden_state[0]
        assert row.states is not None
        np.testing.assert_allclose(np.asarray(row.states, np.float32), hidden.numpy(), rtol=2e-3, atol=2e-3)
        if row.is_greedy:
            best = model.lm_head(hidden[len(row.prompt) - 1 :]).argmax(-1)
            assert tuple(best.tolist()) == row.continuation
        assert row.labels == row.continuation


def test_a_resumed_generation_gives_the_same_rows(target: Path, tmp_path: Path, rows_file: Path) -> None:
    """Stop after a few rows, with the next line torn: none is lost, none comes twice, all are the same."""

    class Full(Exception):
        pass

    class Small(RowFile):
        def append(self, *arguments: Any, **rest: Any) -> None:
            if len(self.done) == 7:
                raise Full
            super().append(*arguments, **rest)

    wanted, model, tokenizer = asks(DOMAINS, PROMPTS, 0), load_engine(target, Settings()), Tokenizer(target)
    path = tmp_path / "generated.jsonl"
    with pytest.raises(Full), Small(path, {}) as file:
        generate(wanted, model, tokenizer, MAX_TOKENS, file)
    with path.open("ab") as lines:
        lines.write(b'{"d": "code", "p": [1, 2')
    with path.with_suffix(".f16").open("ab") as states:
        states.write(b"half of a row")
    with RowFile(path, {}) as file:
        assert len(file.done) == 7
        generate(wanted, model, tokenizer, MAX_TOKENS, file)
    assert _rows(path) == _rows(rows_file)


def test_templates_with_too_few_prompts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEMPLATES, "qa", ["Why?", "How?"])
    with pytest.raises(InvalidRequest, match="prompts: the templates of qa give 2 different ones, not 3"):
        asks(("qa",), 3, 0)


def _rows(path: Path) -> dict[str, tuple[object, ...]]:
    states = np.fromfile(path.with_suffix(".f16"), np.uint16).reshape(-1, 64)
    parsed = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["k"] for row in parsed}) == len(parsed)
    return {r["k"]: (r["p"], r["g"], r["greedy"], states[r["at"] : r["at"] + r["n"]].tolist()) for r in parsed}
