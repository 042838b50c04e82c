"""Test a lone drafter's chains, and running ahead with it, on scripted models."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.drafter.model import ModelDrafter
from app.messages import Draft
from app.stages.draft.protocol import Context
from tests.app.drafter.scripts import TOKENS, chain, context, erratic, steady
from tests.fakes import ScriptedGuesser


def drafter_of(model: ScriptedGuesser) -> ModelDrafter:
    return ModelDrafter("a", model, 100)


def drafted(one: ModelDrafter, asked: Context) -> tuple[list[Draft], int]:
    """Draft to the end; return the drafts, and the levels that they took."""
    ((chain, part),) = one.begin([asked])
    while not part.is_done:
        chain.go_on()
    return part.drafts, part.levels


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 99), st.data())
def test_a_history_changes_no_draft(seed, data):
    """Draft as a fresh chain does, whatever was right, wrong or run ahead on before."""
    one, tokens = drafter_of(erratic(seed)), list(TOKENS)
    for _ in range(data.draw(st.integers(1, 6))):
        now = context(tokens, data.draw(st.integers(1, 4)))
        drafts = one.draft([now])
        assert drafts == drafter_of(erratic(seed)).draft([now])
        for _ in range(data.draw(st.sampled_from([0, 0, 1, 12]))):
            one.chain.run_ahead(["r"])
        right = data.draw(st.integers(0, len(chain(drafts[0]))))
        tokens = [*tokens, *chain(drafts[0])[:right], data.draw(st.integers(0, 4))]


def test_a_hit_answers_without_calling_the_model():
    model = steady(1)
    one = drafter_of(model)
    one.draft([context([8], depth=3)])
    while one.chain.run_ahead(["r"]):
        pass
    model.calls.clear()
    (draft,), levels = drafted(one, context([8, 9, 10, 11, 12], depth=3))  # 9, 10, 11 were right, 12 the target's
    assert draft == drafter_of(steady(1)).draft([context([8, 9, 10, 11, 12], depth=3)])[0]
    assert model.calls == [] and levels == 0
    assert (one.chain.ahead_hits, one.chain.ahead_misses) == (1, 0)


def test_only_the_missing_depth_is_computed():
    model = steady(1)
    one = drafter_of(model)
    one.draft([context([8], depth=3)])
    one.chain.run_ahead(["r"])
    one.chain.run_ahead(["r"])
    model.rows = 0
    (draft,), levels = drafted(one, context([8, 9, 10, 11, 12], depth=3))
    assert draft.tokens == (13, 14, 15)
    assert levels == 2, "what its time is that of"
    assert model.rows == 2, "13 was there; it and 14 are read to guess 14 and 15"


def test_a_miss_rolls_back():
    model = steady(1)
    one = drafter_of(model)
    one.draft([context([8], depth=3)])
    while one.chain.run_ahead(["r"]):
        pass
    model.rows = 0
    (draft,) = one.draft([context([8, 9, 10, 20], depth=3)])
    assert draft.tokens == (21, 22, 23)
    assert model.rows == 1 + 2, "8, 9, 10 stay in the cache, 20 is read, and what was ahead is gone"
    assert (one.chain.ahead_hits, one.chain.ahead_misses) == (0, 1)


def test_running_ahead_takes_small_steps_and_ends():
    model = steady(1)
    one = drafter_of(model)
    one.draft([context([8], depth=3)])
    model.calls.clear()
    steps = 0
    while one.chain.run_ahead(["r"]):
        steps += 1
        assert len(model.calls) == steps
    assert model.calls == [1] * steps
    assert steps == 3 + 1, "the target's own token, and as many as may be asked for next"
    assert not one.chain.run_ahead(["unknown"])


def test_no_run_ahead_on_an_unlikely_path():
    model = steady(1, 0.1)
    one = drafter_of(model)
    one.draft([context([8], depth=9)])
    assert not one.chain.run_ahead(["r"])


@pytest.mark.parametrize("reason", ["memory", "unread"])
def test_running_ahead_takes_no_other_sequences_cache(reason):
    """Without room it takes no other's pages, and reads no long prefix again that was dropped."""
    model = steady(1)
    one = drafter_of(model)
    one.draft([context(TOKENS * 8, depth=3), context(TOKENS * 8, depth=3, request_id="s")])
    model.calls.clear()
    if reason == "memory":
        model.is_full = True
    else:
        one.draft_kv.remove("r")
    assert not one.chain.run_ahead(["r"])
    assert model.calls == [] or reason == "memory"
    model.is_full = False
    model.rows = 0
    one.draft([context([*TOKENS * 8, 6], depth=1, request_id="s")])
    assert model.rows <= 2, "the other one's cache stands"
