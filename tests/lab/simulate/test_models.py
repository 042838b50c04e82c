"""Test the stand-ins for models, which replay a recording."""

import pytest

from app.drafter.draft_kv import DraftKV
from app.request import Sampling
from app.stages.draft.protocol import Context
from lab.simulate.log import DrafterLog, Log
from lab.simulate.models import LogGuesser, SimClock
from tests.lab.simulate.made import TOKEN_S, chain, made_log


@pytest.fixture
def log() -> Log:
    return made_log()


class Calls:
    """The guesses of a stand-in after some tokens."""

    def __init__(self, log: Log, drafter: str) -> None:
        self.draft_kv = DraftKV(drafter, LogGuesser(drafter, log.texts, log.drafters[drafter], SimClock()), 1000)
        self.context = Context("0", "public", [1, *log.texts[0].tokens[:4]], 1, 8, Sampling(seed=0), state=b"\0\0")

    def after(self, *tokens: int) -> list[int]:
        self.draft_kv.align(self.context, [*self.context.tokens, *tokens])
        return [guess.token for guess in self.draft_kv.guess(["0"], 3, 0.0)["0"]]


def test_a_stand_in_goes_on_from_its_own_guesses(log: Log) -> None:
    """Continue the chain of the round's beginning: a model that reads states knows less later in
    the round."""
    mine = list(log.drafters["coder"].guesses[0])
    mine[5] = chain((7, 7, 7), 0.9)
    other = DrafterLog(guesses=(tuple(mine), *log.drafters["coder"].guesses[1:]), token_s={1: TOKEN_S})
    calls = Calls(log.model_copy(update={"drafters": {"coder": other}}), "coder")
    text = log.texts[0].tokens
    assert calls.after() == [*text[4:7]]
    assert calls.after(text[4]) == [*text[5:8]]  # not 7: the chain that began at 4 goes on


def test_a_stand_in_follows_the_others_tokens_while_they_are_right(log: Log) -> None:
    calls = Calls(log, "writer")  # wrong everywhere in this text
    text = log.texts[0].tokens
    assert calls.after() == [999, 999, 999]
    assert calls.after(text[4]) == [999, 999, 999]
    assert calls.after(text[4], 5) == [999, 999, 999]


def test_a_fork_follows_another_branch_beside_its_sequence(log: Log) -> None:
    calls, text = Calls(log, "coder"), log.texts[0].tokens
    assert calls.after(text[4]) == [*text[5:8]]
    main = calls.draft_kv.find("0")
    assert main is not None
    fork = calls.draft_kv.fork(main, [*calls.context.tokens, 7])
    assert fork is not None and fork.uncached == 1
    (own,), (other,) = calls.draft_kv.guess_behind([main, fork], 1, 0.0)
    assert own.token == text[5]
    assert other.token == text[5], "behind a wrong token the chain goes on"
    calls.draft_kv.drop_forks([fork])
    assert calls.after(text[4]) == [*text[5:8]]
