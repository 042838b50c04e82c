"""Test the pool of live drafters."""

import pytest

from app.speculation.drafter_pool import DrafterPool

TABLES = ("lookup", "suffix", "phrases")


@pytest.mark.parametrize(
    ("models", "known"),
    [({"m": "verify:1"}, TABLES), ({"m": "draft:1"}, ("lookup", "phrases")), ({}, TABLES)],
    ids=["in this process", "on a node", "none"],
)
def test_a_tree_of_another_process_shows_nothing_of_drafters_that_learn_there(
    models: dict[str, str], known: tuple[str, ...]
) -> None:
    assert DrafterPool(models, TABLES, alone="verify:1").known_here == known
