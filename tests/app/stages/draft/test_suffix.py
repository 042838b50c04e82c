import random

from hypothesis import given
from hypothesis import strategies as st

from app.messages import Draft
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.stages.draft.suffix import MAX_FOLLOWING, Suffix
from tests.steps import lines_run

outputs = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=30), min_size=1, max_size=8)


def context(tokens: list[int], request_id: str = "now", tenant: str = "a", most: int = 4) -> Context:
    return Context(request_id, tenant, tokens, 2, most, Sampling())


def draft(drafter: Suffix, tokens: list[int], tenant: str = "a", most: int = 4) -> Draft | None:
    drafts = drafter.draft([context(tokens, tenant=tenant, most=most)])
    return drafts[0] if drafts else None


def test_an_answer_is_known_again_in_another_request() -> None:
    drafter = Suffix()
    drafter.update(context([1, 2, 3, 4, 5, 6, 7], "past"))
    drafter.remove("past")
    found = draft(drafter, [9, 3, 4])
    assert found is not None
    assert found.tokens == (5, 6, 7)
    assert found.parents == (0, 1, 2)


def test_tenants_share_nothing() -> None:
    drafter = Suffix()
    drafter.update(context([1, 2, 3, 4, 5, 6, 7], "past", tenant="a"))
    assert draft(drafter, [9, 3, 4], tenant="b") is None


def test_confidence_follows_the_share_of_the_counts() -> None:
    drafter = Suffix()
    for i, last in enumerate((5, 5, 5, 6)):
        drafter.update(context([1, 2, 3, 4, last], str(i)))
    found = draft(drafter, [3, 4], most=2)
    assert found is not None
    assert found.tokens == (5, 6)
    assert found.parents == (0, 0)
    assert found.confidences[0] == 3 * found.confidences[1]


def test_the_prompt_is_context_but_is_not_learnt() -> None:
    drafter = Suffix()
    drafter.update(context([1, 2, 3], "past"))
    found = draft(drafter, [1, 2])
    assert found is not None and found.tokens == (3,)
    drafter = Suffix()
    drafter.update(Context("past", "a", [1, 2, 3, 4], 4, 4, Sampling()))
    assert draft(drafter, [1, 2]) is None


@given(outputs)
def test_learning_in_pieces_equals_learning_at_once(texts: list[list[int]]) -> None:
    whole, pieces = Suffix(), Suffix()
    for i, text in enumerate(texts):
        whole.update(context(text, str(i)))
        for end in range(2, len(text) + 1):
            pieces.update(context(text[:end], str(i)))
            pieces.update(context(text[:end], str(i)))  # a repeated call teaches nothing
    assert whole._counts == pieces._counts


@given(outputs)
def test_unlearning_everything_leaves_nothing(texts: list[list[int]]) -> None:
    drafter = Suffix()
    for i, text in enumerate(texts):
        drafter.update(context(text, str(i), tenant=str(i % 2)))
    for key in list(drafter._outputs):
        drafter._unlearn(key)
    assert drafter._learnt_tokens == 0
    assert not any(drafter._counts.values())


def test_unlearning_survives_full_count_tables() -> None:
    drafter = Suffix(max_tokens=1000)
    for i in range(3000):
        drafter.update(context([1, 2, 3, 4, i % (2 * MAX_FOLLOWING) + 10], str(i)))
        assert drafter._learnt_tokens <= 1000
    tables = [f for f in drafter._counts["a"].values() if isinstance(f, dict)]
    assert max(len(table) for table in tables) <= MAX_FOLLOWING + 1
    for key in list(drafter._outputs):
        drafter._unlearn(key)
    assert drafter._counts == {}


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), max_size=20)), max_size=10))
def test_a_sequence_that_changed_does_no_harm(calls: list[tuple[int, list[int]]]) -> None:
    drafter = Suffix(max_tokens=30)
    for request, text in calls:
        drafter.update(context([1, 2, *text], str(request)))
        assert 0 <= drafter._learnt_tokens <= 30
        found = draft(drafter, [1, 2, *text], most=8)
        if found:
            assert len(found.tokens) == len(found.parents) == len(found.confidences) <= 8
            assert all(0 <= parent <= i for i, parent in enumerate(found.parents))
            assert all(0.0 < c < 1.0 for c in found.confidences)


def test_a_round_takes_few_steps() -> None:
    rng, drafter = random.Random(0), Suffix()
    for i in range(50):
        drafter.update(context(rng.choices(range(20), k=200), str(i)))
    tokens, most = rng.choices(range(20), k=200), 0

    def work() -> None:
        drafter.update(context(tokens))
        drafter.draft([context(tokens, most=8)])

    work()  # learns all that is there
    for _ in range(20):
        tokens += rng.choices(range(20), k=3)
        most = max(most, lines_run(work))
    assert most < 800, "microseconds"
