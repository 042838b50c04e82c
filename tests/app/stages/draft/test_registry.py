import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.messages import Draft
from app.request import Sampling
from app.stages.draft.phrases import Phrases
from app.stages.draft.protocol import Context
from app.stages.draft.registry import BUILT_IN, PHRASES, build


def test_drafters_bear_their_names() -> None:
    assert [drafter.name for drafter in build()] == list(BUILT_IN)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(KeyError):
        build(["unknown"])


@pytest.mark.parametrize("name", BUILT_IN)
@given(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=40), most=st.integers(0, 9))
def test_a_draft_is_a_tree_on_the_end_of_its_context(name: str, tokens: list[int], most: int) -> None:
    (drafter,) = build([name])
    past = Context("past", "public", [0, 1, 2] * 10, 1, most, Sampling())
    now = Context("now", "public", tokens, 1, most, Sampling())
    for context in (past, now, now):
        drafter.update(context)
    for draft in drafter.draft([now, past]):
        assert draft.drafter == name
        assert draft.base == len(tokens if draft.request_id == "now" else past.tokens)
        assert 0 < len(draft.tokens) == len(draft.parents) == len(draft.confidences) <= most
        assert all(0 <= parent <= i for i, parent in enumerate(draft.parents))
        assert Draft.read(draft.json()) == draft
    assert now.tokens == tokens
    drafter.remove("now")


def test_phrases_are_named_without_being_loaded():
    assert Phrases.name == PHRASES
