from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ModelRefused
from app.request import Sampling
from app.stages.draft.phrases import MAX_REQUESTS, MAX_TOKENS, Phrases, load_phrases
from app.stages.draft.protocol import Context
from kernels.host.next_tokens import HERE, LITTLE, MAX_CHILDREN, OWN
from kernels.host.phrase_tables import DOUBT, phrase_tables
from kernels.host.phrase_tree import MIN_SURVIVAL

VOCAB = 50
END = VOCAB


def context(tokens: list[int], depth: int = 4) -> Context:
    return Context("r", "t", tokens, 1, depth, Sampling())


def phrases(*texts: list[int]) -> Phrases:
    ids = np.array([token for text in texts for token in (*text, END)], np.int64)
    return Phrases(phrase_tables(ids, VOCAB), VOCAB)


def likeliest(texts: list[list[int]], tokens: list[int]) -> dict[int, float]:
    """Next tokens' chances by plain search through store and request: the formula, word by word."""

    def p(size: int) -> dict[int, float]:
        shorter = [n for n in DOUBT if n < size]
        below = p(max(shorter)) if shorter else {}
        if size > len(tokens):
            return below
        end = tokens[-size:]
        after = [t[i + size] for t in texts for i in range(len(t) - size) if t[i : i + size] == end]
        own = [tokens[i + size] for i in range(len(tokens) - size) if tokens[i : i + size] == end]
        counts = Counter(after) + Counter({token: OWN * n for token, n in Counter(own).items()})
        total = sum(counts.values())
        if not total:
            return below
        every = {*counts, *below}
        return {t: (counts[t] + DOUBT[size] * below.get(t, 0.0)) / (total + DOUBT[size]) for t in every}

    found = p(max(DOUBT))
    raised = {token: chance * (HERE if token in tokens else 1.0) for token, chance in found.items()}
    scale = sum(found.values()) / sum(raised.values()) if raised else 1.0
    return {token: chance * scale for token, chance in raised.items()}


def test_trust_falls_with_the_size_of_the_match():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    one = phrases(text)
    (draft,) = one.draft([context([1, 2, 3, 4, 5, 6, 7, 8], 3)])
    assert (draft.tokens, draft.parents, draft.base, draft.drafter) == ((9, 10, 11), (0, 1, 2), 8, "phrases")
    one.remove("r")
    (short,) = one.draft([context([40, 7, 8], 1)])
    assert short.tokens == (9,)
    assert short.confidences[0] < draft.confidences[0]


def test_the_few_most_frequent_come_first():
    texts = [[1, 2, token] for token in (5, 6, 6, 7, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 9)]
    (draft,) = phrases(*texts).draft([context([1, 2], 9)])
    assert draft.tokens == (9, 8, 7, 6)
    assert len(draft.tokens) == MAX_CHILDREN
    assert draft.parents == (0, 0, 0, 0)


def test_own_text_counts_for_more_than_the_store():
    texts = [[1, 2, 5]] * 6
    (draft,) = phrases(*texts).draft([context([1, 2, 7, 3, 1, 2], 1)])
    assert draft.tokens == (7,)
    (draft,) = phrases().draft([context([4, 5, 6, 4, 5], 2)])
    assert draft.tokens == (6, 4), "without a store, too"


def test_a_token_of_the_request_is_likelier():
    texts = [[9, 5, 1], [9, 5, 2], [9, 5, 2]]
    (plain,) = phrases(*texts).draft([context([9, 5], 1)])
    assert plain.tokens == (2,)
    (found,) = phrases(*texts * 2, [9, 5, 1]).draft([context([1, 30, 9, 5], 1)])
    assert found.tokens == (1,), "three against four, and it stands in the prompt"


@given(
    st.lists(st.lists(st.integers(0, 4), max_size=30), max_size=6), st.lists(st.integers(0, 4), min_size=1, max_size=24)
)
def test_chances_are_those_of_a_plain_search(texts, tokens):
    found = phrases(*texts).draft([context(tokens, 1)])
    expected = likeliest(texts, tokens)
    if found:
        (draft,) = found
        assert draft.confidences[0] == pytest.approx(max(expected.values()), abs=LITTLE)
        assert expected[draft.tokens[0]] == pytest.approx(max(expected.values()), abs=LITTLE)
    else:
        assert max(expected.values(), default=0.0) < MIN_SURVIVAL + LITTLE


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.data())
def test_a_grown_request_is_drafted_for_as_a_new_one(tokens, data):
    grown = phrases([0, 1, 2, 3, 4] * 3)
    for end in sorted(data.draw(st.sets(st.integers(1, len(tokens)), max_size=6))):
        grown.draft([context(tokens[:end], 3)])
    assert grown.draft([context(tokens, 3)]) == phrases([0, 1, 2, 3, 4] * 3).draft([context(tokens, 3)])


def test_a_request_with_other_tokens_is_read_anew():
    one = phrases()
    one.draft([context([1, 2, 3, 1, 2], 1)])
    (draft,) = one.draft([context([7, 8, 9, 7, 8, 4, 7, 8], 1)])
    assert draft.tokens[0] in (9, 4)
    (draft,) = one.draft([context([5, 6, 5], 1)])
    assert draft.tokens == (6,)


def test_kept_requests_and_their_tokens_are_bounded():
    one = phrases()
    long = [1, 2, *range(10, 40), *([5] * MAX_TOKENS), 1]
    assert all(2 not in draft.tokens for draft in one.draft([context(long, 4)]))
    for i in range(MAX_REQUESTS + 3):
        one.draft([Context(f"r{i}", "t", [1, 2, 1], 1, 1, Sampling())])
    assert len(one._own_text) == MAX_REQUESTS


def test_texts_do_not_run_into_each_other():
    one = phrases([1, 2, 3], [4, 5, 6])
    assert one.draft([context([2, 3])]) == []
    (draft,) = one.draft([context([3, 4])])
    assert draft.tokens == (5,)


def test_an_unknown_end_or_a_short_one_says_nothing():
    one = phrases([1, 2, 3])
    assert one.draft([context([9]), context([40, 41]), context([1, 2], 0)]) == []
    assert phrases().draft([context([1, 2])]) == []


def test_it_learns_nothing_of_one_request_for_another():
    one = phrases([1, 2, 3])
    one.draft([Context("other", "t", [7, 8, 9, 7], 1, 4, Sampling())])
    one.update(context([7, 8, 9]))
    one.remove("r")
    assert one.draft([context([7, 8])]) == []


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


def test_tables_are_made_once_and_found_again(tmp_path, monkeypatch):
    np.save(tmp_path / "tokens.npy", np.array([1, 2, 3, END, 4, 5, 6, END], np.uint8))
    made = [load_phrases(tmp_path, VOCAB), load_phrases(tmp_path, VOCAB, tmp_path / "kept")]
    monkeypatch.setattr("app.stages.draft.phrases.phrase_tables", lambda *_: pytest.fail("made again"))
    made.append(load_phrases(tmp_path, VOCAB, tmp_path / "kept"))
    assert [one.draft([context([1, 2])]) for one in made] == [made[0].draft([context([1, 2])])] * 3
    assert made[0].draft([context([1, 2])])


def test_another_store_or_vocabulary_has_other_tables(tmp_path):
    for tokens, vocab in (([1, 2, 3], VOCAB), ([1, 2, 4], VOCAB), ([1, 2, 4], 2 * VOCAB)):
        np.save(tmp_path / "tokens.npy", np.array([*tokens, 2 * VOCAB], np.uint8))
        (draft,) = load_phrases(tmp_path, vocab, tmp_path / "kept").draft([context([1, 2])])
        assert draft.tokens == (tokens[-1],)
    assert len([*(tmp_path / "kept").iterdir()]) == 3


def test_tables_that_cannot_be_kept_are_made_all_the_same(tmp_path, caplog):
    np.save(tmp_path / "tokens.npy", np.array([1, 2, 3, END], np.uint8))
    (tmp_path / "kept").write_text("no folder")
    assert load_phrases(tmp_path, VOCAB, tmp_path / "kept").draft([context([1, 2])])
    assert "cannot be kept" in caplog.text
    (tmp_path / "kept").unlink()
    load_phrases(tmp_path, VOCAB, tmp_path / "kept")
    for file in (tmp_path / "kept").rglob("slots.npy"):
        file.write_bytes(b"")
    assert load_phrases(tmp_path, VOCAB, tmp_path / "kept").draft([context([1, 2])])
