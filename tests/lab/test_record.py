"""Test how drafts are recorded, with a drafter whose guesses are known."""

from typing import Any
from unittest.mock import Mock

import pytest

from app.drafter.draft_kv import DraftKV
from app.state import BatchEntry, Guess
from lab.record import _guesses, _Wide, check_alike, with_times
from lab.simulate.log import DEPTH, DrafterLog, Text
from tests.lab.simulate.made import made_log

TEXT = Text(domain="code", prompt_ids=(1,), tokens=(2, 3, 4))


def guess_one(works: list[BatchEntry], choices: int) -> list[list[Guess]]:
    """Guess the last token and one, then ten and a hundred more; the fourth choice is unlikely."""
    assert choices == 4
    return [
        [Guess(n + 1, 0.612345, n + 11, 0.2, ((n + 101, 0.1), (n + 201, 0.01)))] for n in (w.tokens[-1] for w in works)
    ]


def test_chains_are_recorded_behind_each_prefix_and_each_choice_that_counts() -> None:
    model: Any = Mock(try_reserve=lambda *_: True, cover=lambda s, n: setattr(s, "cached", n), guess_one=guess_one)
    guesses, branches = _guesses(DraftKV("x", _Wide(model), 100), [TEXT, TEXT], [dict.fromkeys(range(1, 4))] * 2)
    assert guesses[0] == guesses[1] and branches[0] == branches[1]
    for at, last in ((1, 2), (2, 3)):
        assert [guess.token for guess in guesses[0][at]] == [*range(last + 1, last + 1 + DEPTH)]
        assert guesses[0][at][0] == Guess(last + 1, 0.6123, last + 11, 0.2, ((last + 101, 0.1), (last + 201, 0.01)))
        assert guesses[0][at][1].further == ((last + 102, 0.1),)
        behind = [[guess.token for guess in chain] for chain in branches[0][at]]
        assert behind == [
            [*range(last + 12, last + 12 + DEPTH - 1)],
            [*range(last + 102, last + 107)],
        ]


def test_times_are_kept_from_a_recording_of_the_same_texts_only() -> None:
    old = made_log()
    slow = {name: DrafterLog(guesses=own.guesses, token_s={1: 9.0}) for name, own in old.drafters.items()}
    new = old.model_copy(update={"costs": "others", "drafters": slow})
    assert with_times(new, old) == old
    check_alike(old.texts, ["coder"], old)
    with pytest.raises(ValueError, match="other texts"):
        check_alike(old.texts[1:], ["coder"], old)
    with pytest.raises(ValueError, match="no drafter stranger"):
        check_alike(old.texts, ["coder", "stranger"], old)
