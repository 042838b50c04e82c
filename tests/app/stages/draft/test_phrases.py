import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ModelRefused
from app.messages import Sampling
from app.stages.draft.phrases import DOUBT, MAX_CHILDREN, Phrases, load_phrases
from app.stages.draft.protocol import Context

VOCAB = 50
END = VOCAB


def context(tokens: list[int], depth: int = 4) -> Context:
    return Context("r", "t", tokens, 1, depth, Sampling())


def phrases(*texts: list[int]) -> Phrases:
    return Phrases(np.array([token for text in texts for token in (*text, END)], np.uint8), VOCAB)


def test_what_followed_in_the_store_follows_again_and_trust_falls_with_the_size_of_the_match():
    one = phrases([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    (draft,) = one.draft([context([1, 2, 3, 4, 5, 6, 7, 8], 3)])
    assert (draft.tokens, draft.parents, draft.base, draft.drafter) == ((9, 10, 11), (0, 1, 2), 8, "phrases")
    assert draft.confidences[0] == pytest.approx(1 / (1 + DOUBT[8]))
    (short,) = one.draft([context([40, 7, 8], 1)])
    assert (short.tokens, short.confidences[0]) == ((9,), pytest.approx(1 / (1 + DOUBT[2])))


def test_the_more_frequent_comes_first_and_no_more_than_a_few():
    texts = [[1, 2, token] for token in (5, 6, 6, 7, 7, 7, 8, 9)]
    (draft,) = phrases(*texts).draft([context([1, 2], 8)])
    assert draft.tokens == (7, 6, 5)
    assert len(draft.tokens) == MAX_CHILDREN
    assert draft.parents == (0, 0, 0)
    assert draft.confidences == pytest.approx([n / (8 + DOUBT[2]) for n in (3, 2, 1)])


def test_texts_do_not_run_into_each_other():
    one = phrases([1, 2, 3], [4, 5, 6])
    assert one.draft([context([2, 3])]) == []
    assert one.draft([context([3, 4])]) == []


def test_an_unknown_end_or_a_short_one_says_nothing():
    one = phrases([1, 2, 3])
    assert one.draft([context([9, 9]), context([1]), context([1, 2], 0)]) == []
    assert phrases().draft([context([1, 2])]) == []


def test_it_learns_nothing():
    one = phrases([1, 2, 3])
    one.observe(context([7, 8, 9]))
    one.forget("r")
    assert one.draft([context([7, 8])]) == []


@given(
    st.lists(st.lists(st.integers(0, 4), max_size=30), max_size=6), st.lists(st.integers(0, 4), min_size=2, max_size=12)
)
def test_the_tables_count_what_a_plain_search_finds(texts, tokens):
    found = phrases(*texts).draft([context(tokens, 3)])
    for size in DOUBT:
        if size > len(tokens):
            continue
        end = tokens[-size:]
        after = [t[i + size] for t in texts for i in range(len(t) - size) if t[i : i + size] == end]
        if after:
            (draft,) = found
            best = max(sorted(set(after)), key=after.count)
            assert draft.tokens[0] == best
            assert draft.confidences[0] == pytest.approx(after.count(best) / (len(after) + DOUBT[size]))
            return
    assert found == []


@pytest.mark.parametrize("store", [np.zeros((2, 2), np.uint16), np.zeros(3, np.float32), None])
def test_a_file_that_is_no_store_is_refused(tmp_path, store):
    if store is None:
        (tmp_path / "tokens.npy").write_bytes(b"no numpy file")
    else:
        np.save(tmp_path / "tokens.npy", store)
    with pytest.raises(ModelRefused, match=r"tokens\.npy"):
        load_phrases(tmp_path, VOCAB)


def test_a_pickle_is_not_run(tmp_path):
    np.save(tmp_path / "tokens.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ModelRefused):
        load_phrases(tmp_path, VOCAB)
