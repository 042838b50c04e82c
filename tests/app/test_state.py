"""Trees agree with plain functions that go node by node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.messages import TreeMessage
from app.state import MAX_NODES, Tree

NAMES = ("a", "b", "c")
VOCAB = 3  # few tokens, so that walks go deep


@st.composite
def trees(draw, max_nodes: int = 12) -> Tree:
    """Draw random trees, chains among them; siblings may repeat a token, as mail may."""
    size = draw(st.integers(0, max_nodes))
    near = draw(st.sampled_from([0, 1, max_nodes]))
    return Tree(
        draw(st.lists(st.integers(0, VOCAB - 1), min_size=size, max_size=size)),
        [draw(st.integers(max(0, i - near), i)) for i in range(size)],
        sorted(draw(st.lists(st.floats(0.0, 1.0), min_size=size, max_size=size)), reverse=True),
        [tuple(draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))) for _ in range(size)],
        {"a": 0.5},
    )


TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=8)


def path_to(tree: Tree, node: int) -> list[int]:
    return [] if node == 0 else [*path_to(tree, tree.parents[node - 1]), node]


def children(tree: Tree, node: int) -> list[int]:
    return [i for i in range(1, len(tree) + 1) if tree.parents[i - 1] == node]


def first_right(tree: Tree, node: int, token: int) -> int | None:
    return next((i for i in children(tree, node) if tree.tokens[i - 1] == token), None)


def facts(tree: Tree, node: int) -> tuple[list[int], float, tuple[str, ...]]:
    """Describe each node by the tokens that lead to it, without numbers."""
    return [tree.tokens[i - 1] for i in path_to(tree, node)], tree.survival[node - 1], tree.proposers[node - 1]


def all_facts(tree: Tree) -> list[tuple[list[int], float, tuple[str, ...]]]:
    return [facts(tree, node) for node in range(1, len(tree) + 1)]


@given(trees())
def test_depths_and_paths_agree_with_the_recursion(tree):
    assert tree.depths() == [len(path_to(tree, node)) for node in range(len(tree) + 1)]
    assert [tree.path(node) for node in range(len(tree) + 1)] == [path_to(tree, n) for n in range(len(tree) + 1)]


@given(trees())
def test_the_main_branch_takes_each_first_child_down_to_a_leaf(tree):
    expected, node = [], 0
    while children(tree, node):
        node = children(tree, node)[0]
        expected.append(node)
    assert tree.main_branch() == expected


@given(trees())
def test_a_child_is_the_first_with_its_token(tree):
    for node in range(len(tree) + 1):
        for token in range(VOCAB):
            assert tree.child(node, token) == first_right(tree, node, token)


@given(trees(), TOKENS)
def test_a_walk_ends_at_the_first_wrong_place_or_with_the_tokens(tree, tokens):
    path, alternatives, node = [], [], 0
    for token in tokens:
        alternatives.append(children(tree, node))
        right = first_right(tree, node, token)
        if right is None:
            break
        path.append(right)
        node = right
    assert tree.walk(tokens) == (path, alternatives)


@given(trees())
def test_a_walk_along_the_main_branch_reaches_its_leaf(tree):
    main = tree.main_branch()
    path, alternatives = tree.walk([tree.tokens[node - 1] for node in main])
    assert path == main
    assert len(alternatives) == len(main)


@given(trees())
def test_the_chain_is_the_main_branch_and_uncopied_where_that_is_all(tree):
    branch = tree.main_branch()
    assert tree.chain() == tree.keep(branch)
    assert (tree.chain() is tree) == (len(branch) == len(tree))


@given(trees(), st.booleans(), st.data())
def test_each_drafters_nodes_are_counted(tree, is_lone, data):
    if is_lone:
        tree = replace(tree, proposers=[("a",)] * len(tree))
    right = data.draw(st.sets(st.integers(1, len(tree)), max_size=len(tree))) if len(tree) else set()
    names = {name for proposers in tree.proposers for name in proposers}
    nodes = {name: [i for i, own in enumerate(tree.proposers, start=1) if name in own] for name in names}
    expected = {name: (len(own), len(right.intersection(own))) for name, own in nodes.items()}
    assert tree.by_proposer(right) == expected


@given(trees(), st.data())
def test_keep_copies_the_nodes_whose_ancestors_are_kept_too(tree, data):
    nodes = data.draw(st.sets(st.integers(1, max(1, len(tree))))) if len(tree) else set()
    before = all_facts(tree)
    kept = tree.keep(nodes)
    expected = [n for n in range(1, len(tree) + 1) if nodes.issuperset(path_to(tree, n))]
    assert all_facts(kept) == [facts(tree, node) for node in expected]
    assert all(parent <= i for i, parent in enumerate(kept.parents))
    assert kept.confidence == tree.confidence
    assert tree.keep(range(1, len(tree) + 1)) == tree
    kept.tokens.append(0)
    assert all_facts(tree) == before


@given(trees(), st.sets(st.sampled_from((*NAMES, "silent"))))
def test_a_drafters_part_has_its_nodes_below_its_own(tree, drafters):
    def is_theirs(node: int) -> bool:
        return all(drafters & set(tree.proposers[i - 1]) for i in path_to(tree, node))

    assert all_facts(tree.of(drafters)) == [facts(tree, n) for n in range(1, len(tree) + 1) if is_theirs(n)]
    assert tree.of(set(NAMES)) == tree


@given(trees(), st.integers(0, 15))
def test_cut_keeps_the_first_nodes(tree, nodes):
    assert tree.cut(nodes) == tree.keep(range(1, min(nodes, len(tree)) + 1))


def mail(tree: Tree, **changes) -> TreeMessage:
    values = {"request_id": "r", "base": 1, "confidence": tree.confidence}
    for name in ("tokens", "parents", "survival", "proposers"):
        values[name] = tuple(getattr(tree, name))
    return TreeMessage(**{**values, **changes})


@given(trees())
def test_a_sound_message_is_the_tree_that_was_sent(tree):
    assert Tree.from_message(mail(tree), VOCAB) == tree


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": (1, 2, 3)},
        {"tokens": (0, VOCAB)},
        {"tokens": (-1, 0)},
        {"parents": (0, 2)},
        {"parents": (-1, 0)},
        {"survival": (0.9, float("nan"))},
        {"proposers": (("a",), ())},
        {
            "tokens": (1,) * (MAX_NODES + 1),
            "parents": (0,) * (MAX_NODES + 1),
            "survival": (0.5,) * (MAX_NODES + 1),
            "proposers": (("a",),) * (MAX_NODES + 1),
        },
    ],
)
def test_an_unsound_message_is_no_tree(changes):
    sound = Tree([1, 2], [0, 1], [0.9, 0.8], [("a",), ("a",)])
    assert Tree.from_message(mail(sound), VOCAB) == sound
    assert Tree.from_message(mail(sound, **changes), VOCAB) is None
