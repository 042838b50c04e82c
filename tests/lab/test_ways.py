"""Test the ways of drafting: their names, and that their settings exist."""

import pytest

from app.config import Settings
from app.messages import TreeMessage
from lab.lone import lone
from lab.ways import DEFAULT, OFF, WAYS, chosen, fixed, titled

#       a (both) - b (one) - c (one)
#       d (other) - e (other)
TREE = TreeMessage(
    request_id="r",
    base=5,
    tokens=(1, 4, 2, 3, 5),
    parents=(0, 0, 1, 3, 2),
    survival=(0.6, 0.45, 0.3, 0.2, 0.1),
    proposers=(("one", "other"), ("other",), ("one",), ("one",), ("other",)),
)


@pytest.mark.parametrize("name", [*WAYS, "fixed:3", "tree:4", "one x 2", "pace with one"])
def test_the_settings_of_a_way_are_valid(name: str) -> None:
    *_, way = chosen([name], ["one"])
    assert way.name == name
    assert Settings().changed(**way.settings)


def test_plain_decoding_comes_first_and_no_way_twice() -> None:
    names = [way.name for way in chosen([*DEFAULT, "vanilla"], [])]
    assert names[0] == OFF and len({*names}) == len(names)


def test_chains_are_each_drafter_at_each_length() -> None:
    names = [way.name for way in chosen(["chains"], ["one", "two"])]
    assert len(names) == 13 and {"one x 1", "two x 6"} <= {*names}
    assert fixed("one", 3).settings == {"plan": "vanilla", "lengths": "fixed:3"}


@pytest.mark.parametrize("name", ["nothing", "fixed:", "tree:x", "three x 2", "one x 9"])
def test_an_unknown_way_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match="there are off; pace;"):
        chosen([name], ["one"])


def test_a_papers_way_in_which_models_hardly_drafted_is_marked() -> None:
    assert titled("cosine", 0.56) == "cosine (models in 56% of rounds)"
    assert titled("cosine, batches in flight", 0.0) == "cosine, batches in flight (models in 0% of rounds)"
    assert titled("faser without overlap", 0.9) == "faser without overlap"
    assert titled("pace, models alone", 0.1) == "pace, models alone", "no paper's"


def test_a_tree_without_fusion_is_one_drafters_own() -> None:
    kept = lone(TREE)
    assert (kept.tokens, kept.parents) == ((1, 4, 5), (0, 0, 2)), "the other promises 1.15 tokens, the one 1.1"
    assert set(kept.proposers) == {("other",)}
