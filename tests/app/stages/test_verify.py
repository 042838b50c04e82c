"""Test verdicts: the walk of a tree along the target's own tokens."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from app.request import Sampling
from app.stages.verify import verify
from app.state import Tree
from tests import fakes

VOCAB = 4


class Speaker:
    """A target's rows whose token depends on all tokens before."""

    def __init__(self, work) -> None:
        self._work = work
        self.asked: list[tuple[int, int]] = []

    def state(self, node: int) -> bytes | None:
        return b"%d" % node

    def token(self, node: int, position: int, sampling: Sampling, history: Sequence[int], mask=None) -> int:
        self.asked.append((node, position))
        assert position == len(history)
        assert [*history] == [*self._work.sequence.tokens, *path_tokens(self._work.tree, node)], "the path to this node"
        return says(history)


def says(history: Sequence[int]) -> int:
    return (sum((i + 1) * token for i, token in enumerate(history)) + len(history)) % VOCAB


def path_tokens(tree: Tree, node: int) -> list[int]:
    return [] if node == 0 else [*path_tokens(tree, tree.parents[node - 1]), tree.tokens[node - 1]]


@st.composite
def trees(draw) -> Tree:
    size = draw(st.integers(0, 20))
    parents = [draw(st.integers(max(0, i - 3), i)) for i in range(size)]
    return fakes.tree(draw(st.lists(st.integers(0, VOCAB - 1), min_size=size, max_size=size)), parents)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6), trees(), st.sets(st.integers(0, VOCAB - 1)))
def test_a_verdict_is_the_targets_own_text_whatever_was_drafted(prompt, tree, eos_ids):
    work = fakes.work(fakes.sequence(prompt, eos_ids=tuple(eos_ids)), 0, drafts=tree)
    speaker = Speaker(work)
    (verdict,) = verify([work], [speaker])
    text = list(prompt)
    for token in verdict.tokens:
        assert token == says(text)
        text.append(token)
    assert verdict.tokens[:-1] == [tree.tokens[node - 1] for node in verdict.path]
    assert [0, *verdict.path[:-1]] == [tree.parents[node - 1] for node in verdict.path] or not verdict.path
    assert speaker.asked == [(node, len(prompt) + i) for i, node in enumerate([0, *verdict.path])]
    assert not set(verdict.tokens[:-1]) & eos_ids, "nothing follows an end"
    # it went as far as the tree allowed
    last = verdict.path[-1] if verdict.path else 0
    children = [tree.tokens[i] for i, parent in enumerate(tree.parents) if parent == last]
    assert verdict.tokens[-1] not in children or verdict.tokens[-1] in eos_ids


def test_of_equal_siblings_the_first_is_followed():
    prompt = [1, 2]
    right = says(prompt)
    work = fakes.work(fakes.sequence(prompt), 0, drafts=fakes.tree([right, right], [0, 0]))
    (verdict,) = verify([work], [Speaker(work)])
    assert verdict.path == [1]


def test_a_prompt_chunk_has_no_verdict():
    chunk, final = fakes.work(fakes.sequence([1, 2, 3]), 0, 2), fakes.work(fakes.sequence([1]), 0)
    none, verdict = verify([chunk, final], [None, Speaker(final)])
    assert none is None
    assert verdict.tokens == [says([1])]
