from app.stages.route import hosts, verifier
from app.store.nodes import Node

HASH = "abc"


def node(name: str, kind: str = "draft", **info) -> Node:
    return Node(kind, name, "owner", 0.0, info)


def drafting(name: str, *names: str, waiting: int = 0, tokenizer: str = HASH) -> Node:
    return node(name, drafters=list(names), waiting=waiting, tokenizer=tokenizer)


def test_the_verifier_with_the_fewest_sequences_is_chosen():
    live = [node("v1", "verify", sequences=3), node("v3", "verify", sequences=1), node("v2", "verify", sequences=1)]
    assert verifier(live).name == "v2"


def test_a_verifier_that_has_not_said_yet_counts_as_idle():
    assert verifier([node("v1", "verify", sequences=1), node("v2", "verify")]).name == "v2"


def test_without_a_live_verifier_none_is_chosen():
    assert verifier([]) is None


def test_every_drafter_has_its_nodes_the_least_busy_first():
    live = [drafting("d1", "small", "tiny", waiting=4), drafting("d2", "small"), drafting("d3", "other", waiting=9)]
    assert hosts(live, HASH) == {
        "small": ("draft:d2", "draft:d1"),
        "tiny": ("draft:d1",),
        "other": ("draft:d3",),
    }


def test_a_drafter_with_another_tokenizer_is_not_asked():
    live = [drafting("d1", "small", tokenizer="xyz"), node("d2", drafters=["dumb"]), drafting("d3", "small", waiting=5)]
    assert hosts(live, HASH) == {"small": ("draft:d3",)}


def test_a_node_that_says_nothing_of_drafters_has_none():
    assert hosts([node("d1", tokenizer=HASH)], HASH) == {}
