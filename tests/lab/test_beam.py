"""Test what trees over recordings are worth."""

from pathlib import Path

import pytest

from app.state import Guess
from lab.beam import main
from lab.simulate.log import DEPTH, DrafterLog
from tests.lab.simulate.made import LENGTH, made_log


def chain_at(at: int, tokens: tuple[int, ...]) -> tuple[Guess, ...]:
    right = enumerate(tokens[at : at + DEPTH], start=at)
    return tuple(Guess(token, 0.6, 999, 0.3) if i % 2 else Guess(999, 0.5, token, 0.4) for i, token in right)


def test_a_beam_goes_on_behind_second_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Right by its first choice at every other token and else by its second: 1 + 1, 1 + 1 and 3 + 1 tokens a round."""
    log, file = made_log(), tmp_path / "log.json.gz"
    guesses = tuple(tuple(chain_at(i, (*text.tokens, *range(DEPTH))) for i in range(LENGTH)) for text in log.texts)
    log.model_copy(update={"drafters": {"half": DrafterLog(guesses=guesses, token_s={1: 1.0})}}).write(file)
    assert main([str(file)]) == 0
    shown = capsys.readouterr().out
    assert "half, all domains: tokens a round: chain 1.95, chain and leaves 2.05, beam of 2 3.90; " in shown
    assert "right where earlier choices are wrong: 0.50, 1.00" in shown
