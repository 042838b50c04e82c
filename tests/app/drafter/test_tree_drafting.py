"""Test guessing ahead with trees, on scripted models and a clock that these move."""

from dataclasses import replace

import pytest

from app.drafter.model import ModelDrafter
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.state import Guess
from tests.app.drafter.test_guess_tree import Clock, Timed, paths
from tests.fakes import VOCAB

LONG = [*range(60)]


def context(
    tokens: list[int], request: str = "r", *, depth: int = 2, nodes: int = 8, step_s: float = 4.0, pace: float = 0.0
) -> Context:
    return Context(request, "public", list(tokens), 1, depth, Sampling(), 0.05, nodes, pace, step_s)


def drafter_of(clock: Clock, row_s: float = 0.0) -> tuple[ModelDrafter, Timed]:
    """Return a drafter that takes a second for a guess and knows it; first choices add 1, second ones 9."""
    model = Timed(clock, row_s)
    one = ModelDrafter("a", model, 256, clock=clock)
    one.draft([context([1], "first")])
    one.remove("first")
    model.batches.clear()
    return one, model


def run_ahead(one: ModelDrafter, *requests: str) -> int:
    passes = 0
    while one.run_ahead(requests or ("r",)):
        passes += 1
    return passes


@pytest.mark.parametrize(
    "outcome", [(2, 3, 4), (2, 3, 12), (2, 11), (10,), (10, 11)], ids=["all right", "last", "second", "first", "branch"]
)
def test_whatever_the_verdict_its_draft_is_there(outcome: tuple[int, ...]) -> None:
    one, model = drafter_of(Clock())
    one.draft([context([1])])
    run_ahead(one)
    model.batches.clear()
    now = context([1, *outcome], step_s=0.0)
    (draft,) = one.draft([now])
    assert model.batches == []
    (fresh,) = drafter_of(Clock())[0].draft([now])
    assert paths(draft) == paths(fresh)
    assert one.ahead == (1, 0)


def test_no_pass_that_ends_after_the_verdict_is_made_unless_it_pays() -> None:
    for pace in (10.0, 0.0):
        clock = Clock()
        one, _ = drafter_of(clock)
        one.draft([context([1], step_s=2.5, pace=pace)])
        ended = clock.now_s + 2.5
        assert (run_ahead(one) > 2) == (pace == 0.0)
        assert (clock.now_s <= ended) == (pace > 0.0)


def test_what_was_guessed_ahead_goes_at_once_where_a_miss_is_not_worth_the_wait_of_all() -> None:
    for others, is_guessed in ((1, True), (9, False)):
        one, model = drafter_of(Clock())
        names = [f"r{i}" for i in range(1 + others)]
        one.draft([context([1], name, pace=0.2) for name in names])
        run_ahead(one, *names)
        model.batches.clear()
        missed, *right = one.draft([context([1, 77 if name == "r0" else 2], name, pace=0.2) for name in names])
        assert all(draft.tokens for draft in right)
        assert (bool(missed.tokens), bool(model.batches)) == (is_guessed, is_guessed)


def test_a_pass_goes_on_with_the_outcomes_that_bring_most_in_its_time() -> None:
    widths = {}
    for row_s in (0.0, 3.0):
        one, model = drafter_of(Clock(), row_s)
        for length in (1, 2, 3):
            one.draft([context([*range(length)])])
            model.batches.clear()
            run_ahead(one)
        widths[row_s] = max(model.batches)
    assert widths[0.0] > widths[3.0] == 1


def test_a_prompt_is_read_while_the_others_are_verified_not_while_they_wait() -> None:
    clock = Clock()
    one, model = drafter_of(clock)
    one.draft_kv.token_s = 0.02
    asked = [context([1], pace=1.0), context(LONG, "new", pace=1.0)]
    drafts = {draft.request_id: draft for draft in one.draft(asked)}
    assert not drafts["new"].tokens
    model.rows = 0
    assert one.read_ahead(["r", "new"]) and model.rows > 16
    while one.read_ahead(["r", "new"]):
        pass
    (draft,) = one.draft([context([*LONG, LONG[-1] + 1], "new", step_s=0.0)])
    assert draft.tokens


def test_where_nothing_is_guessed_ahead_a_prompt_is_read_at_once() -> None:
    one, _ = drafter_of(Clock())
    one.draft_kv.token_s = 0.02
    (draft,) = one.draft([context(LONG, step_s=0.0, pace=0.1)])
    assert draft.tokens


def test_a_text_that_nothing_waits_for_is_read_between_drafts_in_pieces_as_long_as_a_guess() -> None:
    one, model = drafter_of(Clock())
    one.draft_kv.token_s = 1.0 / 20.0
    reading = replace(context(LONG, "new", step_s=0.0), is_reading=True)
    drafts = {draft.request_id: draft for draft in one.draft([context([1], step_s=0.0, pace=0.2), reading])}
    assert drafts["r"].tokens and not drafts["new"].tokens
    assert one.draft_kv.seen("new") == 0 and model.rows < 20, "the draft waited for none of it"
    seen = []
    while one.read_ahead(["new"]):
        seen.append(one.draft_kv.seen("new"))
    assert seen == [20, 40, 60] and not one.run_ahead(["new"]), "nothing is guessed ahead"


def test_beside_a_step_of_the_target_reading_seems_no_dearer() -> None:
    clock = Clock()
    one, model = drafter_of(clock)
    for name in ("first", "second"):
        one.draft([context(LONG, name, step_s=0.0)])
        model.first_s = 100.0
    assert one.draft_kv.token_s == pytest.approx(1.0 / 59)


def test_outcomes_take_no_room_from_other_sequences() -> None:
    one, model = drafter_of(Clock())
    one.draft([context([1]), context([5], "s")])
    model.is_full = True
    run_ahead(one)
    model.is_full, model.rows = False, 0
    one.draft([context([5, 6], "s", depth=1, step_s=0.0)])
    assert model.rows <= 2, "the other one's cache stands"


def test_sureness_is_that_behind_right_tokens() -> None:
    """Guesses behind unlikely tokens, most of those made ahead, say little of the next ones."""
    one, model = drafter_of(Clock())
    model._say = lambda read: Guess((read[-1] + 1) % VOCAB, 0.8 if read[-1] < 40 else 0.01, (read[-1] + 9) % VOCAB, 0.1)
    for start in range(1, 30):
        one.draft([context([*range(start)])])
        run_ahead(one)
    assert one.trees.sureness > 0.6
