"""Test what a recording tells of the tokens behind a path."""

from pathlib import Path

import pytest

from app.drafter.draft_kv import DraftKV
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.state import Guess
from lab.simulate.log import DrafterLog, Log
from lab.simulate.models import LogGuesser, SimClock
from tests.lab.simulate.made import chain, made_log

TOKENS = (5, 6, 7, 8, 9)
SECOND, THIRD = 50, 51  # choices behind the first token
FIRST = Guess(6, 0.6, SECOND, 0.2, ((THIRD, 0.1),))
BRANCHES = (chain((40, 41), 0.5), chain((60, 61), 0.5))


@pytest.fixture
def own() -> DrafterLog:
    guesses = ((), (FIRST, *chain((7, 99, 98), 0.5)), chain((77, 78), 0.5), chain((8, 9), 0.5), chain((9,), 0.5))
    branches = ((), BRANCHES, (), (), ())
    return DrafterLog(guesses=(guesses,), branches=(branches,), token_s={1: 1.0})


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ((), (6, 7, 99, 98)),
        ((6,), (7, 99, 98)),  # its own chain goes on, though another was recorded there
        ((6, 7), (99, 98)),
        ((SECOND,), (40, 41)),
        ((SECOND, 40), (41,)),
        ((THIRD, 60), (61,)),
        ((6, 7, 8), (9,)),  # right, and not its own: what was recorded behind these tokens
        ((33,), (7, 99, 98)),  # wrong and not recorded
        ((33, SECOND), (99, 98)),  # behind a wrong token nothing is looked up again
        ((33, 7, 99, 98, 1), ()),
    ],
)
def test_each_node_of_a_tree_has_what_was_recorded_behind_it(
    own: DrafterLog, path: tuple[int, ...], found: tuple[int, ...]
) -> None:
    assert tuple(guess.token for guess in own.after(0, TOKENS, 1, path)) == found


def test_a_right_second_choice_without_a_branch_is_followed_by_that_prefixs_chain(own: DrafterLog) -> None:
    bare = own.model_copy(update={"branches": ()})
    assert [guess.token for guess in bare.after(0, (5, SECOND, 7), 1, (SECOND,))] == [77, 78]
    assert [guess.token for guess in own.after(0, (5, SECOND, 7), 1, (SECOND,))] == [40, 41]


def test_older_recordings_are_read_and_newer_ones_written(tmp_path: Path, own: DrafterLog) -> None:
    old = DrafterLog.model_validate_json('{"guesses": [[[[1, 0.5, 2, 0.25]]]], "token_s": {"1": 1.0}}')
    assert old.guesses == (((Guess(1, 0.5, 2, 0.25),),),)
    log = made_log().model_copy(update={"drafters": {"coder": own, "writer": old}})
    log.write(tmp_path / "log.json.gz")
    assert Log.read(tmp_path / "log.json.gz") == log


def test_a_batch_of_paths_takes_the_time_of_as_many_sequences() -> None:

    log, clock = made_log(), SimClock()
    text = log.texts[0]
    draft_kv = DraftKV("coder", LogGuesser("coder", log.texts, log.drafters["coder"], clock), 1000)
    ids = ["0.0", "0.0/1", "0.0/2"]
    for own_id, ahead in zip(ids, ((), text.tokens[4:5], (7,)), strict=True):
        tokens = [*text.prompt_ids, *text.tokens[:4]]
        draft_kv.align(Context(own_id, "public", tokens, 1, 8, Sampling(seed=0)), [*tokens, *ahead])
    found = draft_kv.guess(ids, 1, 0.0)
    assert [found[own_id][0].token for own_id in ids] == [text.tokens[4], text.tokens[5], text.tokens[5]]
    own = log.drafters["coder"]
    reading_s = 3 * own.read_s * 4 + 2 * own.read_s
    assert clock.now_s == pytest.approx(own.token_s[8] + reading_s)
