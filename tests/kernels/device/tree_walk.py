"""Test the walking of trees; run by ../test_device.py, in a process of its own."""

import random

import pytest
import torch

from app.stages.verify import verify
from app.state import BatchEntry, Tree
from kernels.tree.tree_walk import tree_walk, tree_walk_reference
from tests import fakes
from tests.kernels.device.places import DEVICE


class TargetRows:
    """The target's token in each node's row, as `verify` asks for it."""

    def __init__(self, tokens):
        self.tokens = tokens

    def state(self, node):
        return None

    def token(self, node, position, sampling, history, mask=None):
        return self.tokens[node]


def draw_tree(draw, size, vocab_size, likely):
    """Draw a tree, with many repeated tokens, and the target's tokens, often those of a child."""
    parents = [draw.choice([i, draw.randrange(i + 1)]) for i in range(size)]
    tokens = [draw.randrange(vocab_size) for _ in range(size)]
    target = []
    for node in range(size + 1):
        below = [token for token, parent in zip(tokens, parents, strict=True) if parent == node]
        target.append(draw.choice(below) if below and draw.random() < likely else draw.randrange(vocab_size))
    return tokens, parents, target


def pad(lists, width, value):
    return torch.tensor([list(x) + [value] * (width - len(x)) for x in lists], dtype=torch.int32)


@pytest.mark.parametrize(("ends", "likely"), [(0, 0.95), (1, 0.3), (2, 1.0)])
@pytest.mark.parametrize("most", [1, 5, 31, 63])
def test_walks_are_those_of_the_verify_stage(most, ends, likely):
    draw = random.Random(most)
    trees = [draw_tree(draw, draw.randint(0, most), 12, likely) for _ in range(6)]
    trees.append(([1] * most, list(range(most)), [1] * (most + 1)))  # all of a chain is right
    # One sequence fewer end tokens than the others; what is behind a tree's size must not be read.
    eos = [draw.sample(range(12), ends) for _ in trees[1:]] + [[]]
    sizes = torch.tensor([len(tokens) for tokens, _, _ in trees], dtype=torch.int32)
    arguments = [
        pad([tokens for tokens, _, _ in trees], most, 1),
        pad([parents for _, parents, _ in trees], most, 0),
        sizes,
        pad([target for _, _, target in trees], most + 1, 1),
        pad(eos, ends, -1),
    ]
    found = tree_walk(*(x.to(DEVICE) for x in arguments))
    expected = tree_walk_reference(*arguments)
    for one, other in (
        (found.paths, expected.paths),
        (found.accepted, expected.accepted),
        (found.bonus, expected.bonus),
    ):
        assert torch.equal(one.cpu(), other)
    works = []
    for (tokens, parents, _), ids in zip(trees, eos, strict=True):
        works.append(BatchEntry(fakes.cached([0]), 0, [0], Tree(tokens, parents), final=True, eos_ids=tuple(ids)))
    verdicts = verify(works, [TargetRows(target) for _, _, target in trees])
    for i, verdict in enumerate(verdicts):
        length = int(found.accepted[i])
        path = found.paths[i, :length].tolist()
        assert path == verdict.path
        assert [trees[i][0][node - 1] for node in path] + [int(found.bonus[i])] == verdict.tokens
