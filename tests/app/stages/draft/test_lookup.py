import random
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.messages import Draft
from app.request import Sampling
from app.stages.draft.lookup import MOST_UPDATES, Lookup
from app.stages.draft.protocol import Context
from kernels.host.own_matches import LONGEST, SIZES
from tests.steps import lines_run

texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def context(tokens: list[int], request_id: str = "r", most: int = 4, prompt_length: int = 1) -> Context:
    return Context(request_id, "public", tokens, prompt_length, most, Sampling())


def draft(drafter: Lookup, tokens: list[int], **rest: Any) -> Draft | None:
    drafts = drafter.draft([context(tokens, **rest)])
    return drafts[0] if drafts else None


def test_repeats_what_followed_the_same_words() -> None:
    found = draft(Lookup(), [5, 6, 7, 8, 9, 1, 5, 6])
    assert found is not None
    assert found.tokens == (7, 8, 9, 1)
    assert found.parents == (0, 1, 2, 3)
    assert found.base == 8


def test_prefers_the_longest_match_then_the_most_recent() -> None:
    longest = draft(Lookup(), [1, 2, 3, 4, 7, 9, 3, 4, 8, 1, 2, 3, 4], most=1)
    recent = draft(Lookup(), [3, 4, 7, 3, 4, 8, 3, 4], most=1)
    assert longest is not None and longest.tokens == (7,)
    assert recent is not None and recent.tokens == (8,)


def test_a_match_that_runs_into_the_end_repeats_its_period() -> None:
    found = draft(Lookup(), [1, 2, 1, 2, 1, 2], most=5)
    assert found is not None and found.tokens == (1, 2, 1, 2, 1)


def test_no_draft_without_a_match_or_a_budget() -> None:
    assert draft(Lookup(), [1, 2, 3, 4]) is None
    assert draft(Lookup(), [1, 2, 1, 2], most=0) is None
    assert draft(Lookup(), [1]) is None


def plain(tokens: list[int], most: int) -> tuple[int, ...]:
    """Lookup's rule without an index: of each size's last place, the one with the longest match, then the
    latest."""
    best = (0, 0)
    for size in SIZES:
        places = [i for i in range(size, len(tokens)) if tokens[i - size : i] == tokens[-size:]]
        for i in places[-1:]:
            length = size
            while length < min(i, LONGEST) and tokens[i - 1 - length] == tokens[-1 - length]:
                length += 1
            best = max(best, (length, i))
    period = tokens[best[1] :] if best[0] else []
    return tuple(period[i % len(period)] for i in range(most)) if period else ()


@given(texts, st.lists(st.integers(1, 7), max_size=20))
def test_growing_equals_searching_the_whole_text(tokens: list[int], steps: list[int]) -> None:
    drafter, length = Lookup(), 1
    for step in [*steps, len(tokens)]:
        length = min(len(tokens), length + step)
        found = draft(drafter, tokens[:length])
        assert (found.tokens if found else ()) == plain(tokens[:length], 4)


@given(texts, texts)
def test_a_replaced_sequence_is_noticed(first: list[int], second: list[int]) -> None:
    """By the last tokens that were read, or else its guesses are of both texts."""
    assume(second[: len(first)][-LONGEST:] != first[-LONGEST:])
    fresh, used = Lookup(), Lookup()
    draft(used, first)
    found, expected = draft(used, second), draft(fresh, second)
    assert (found and found.tokens) == (expected and expected.tokens)


def test_confidence_follows_what_happened() -> None:
    drafter, tokens = Lookup(), [1, 2]
    before = draft(drafter, [*tokens, 9, 1, 2], request_id="other")
    for i in range(60):  # after 1 2 something else comes each time
        tokens += [10 + i, 1, 2]
        draft(drafter, tokens)
    after = draft(drafter, tokens)
    assert before is not None and after is not None
    assert after.confidences[0] < before.confidences[0] / 3


@given(texts)
def test_confidences_are_probabilities(tokens: list[int]) -> None:
    found = draft(Lookup(), tokens)
    assert found is None or all(0.0 < c < 1.0 for c in found.confidences)


def test_memory_is_bounded_and_forgetting_frees_it() -> None:
    drafter = Lookup(max_tokens=100)
    for i in range(30):
        drafter.update(context(list(range(40)), request_id=str(i)))
    drafter.draft([])
    assert drafter._held_tokens == 80
    assert list(drafter._texts) == ["28", "29"]
    rows = len(drafter._rows.texts.tokens)
    drafter.remove("29")
    drafter.remove("unknown")
    assert drafter._held_tokens == 40
    for i in range(50):
        drafter.draft([context(list(range(40)), request_id=str(i))])
    assert len(drafter._rows.texts.tokens) == rows, "rows are used again"


def test_a_row_used_again_knows_nothing_of_its_last_text() -> None:
    drafter, tokens = Lookup(), [1, 2, 3, 1, 2]
    for i in range(20):
        found = draft(drafter, tokens, request_id=str(i))
        assert found is not None and found.tokens == (3, 1, 2, 3)
        drafter.remove(str(i))
        assert draft(drafter, [1, 2], request_id=str(i)) is None
        drafter.remove(str(i))


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=20))
def test_updates_are_taken_in_one_by_one(pieces: list[list[int]]) -> None:
    """A match is counted as it was when each piece came, though the drafter reads them together."""
    at_once, by_turns, tokens = Lookup(), Lookup(), [0, 1, 0, 1]
    for piece in pieces:
        tokens = [*tokens, *piece]
        for drafter in (at_once, by_turns):
            drafter.update(context(tokens))
        by_turns.draft([])
    assert draft(at_once, tokens) == draft(by_turns, tokens)
    assert at_once._rates.tolist() == by_turns._rates.tolist()


def test_updates_that_wait_take_bounded_memory() -> None:
    drafter = Lookup()
    for i in range(3 * MOST_UPDATES):
        drafter.update(context([i]))
    assert len(drafter._updates) < MOST_UPDATES


def test_a_batch_is_drafted_for_as_its_sequences_one_by_one() -> None:
    texts = {str(i): [i, 5, 6, i, 5] for i in range(20)}
    found = Lookup().draft([context(text, request_id=name, most=3) for name, text in texts.items()])
    assert found == [draft(Lookup(), text, request_id=name, most=3) for name, text in texts.items()]


@settings(max_examples=5)
@given(st.integers(0, 100))
def test_a_round_takes_few_steps(seed: int) -> None:
    tokens = random.Random(seed).choices(range(50), k=2000)
    drafter = Lookup()
    drafter.update(context(tokens))
    most = 0

    def work() -> None:
        drafter.draft([context(tokens, most=8)])

    for _ in range(20):
        tokens += random.Random(len(tokens)).choices(range(50), k=3)
        most = max(most, lines_run(work))
    assert most < 800, "microseconds"
