"""A fuser: drafts in, one tree a sequence out."""

import pytest

from app.fuser.fuser import Fuser
from tests import fakes
from tests.fakes import draft_job, drafter_node, guessing


def test_residents_and_others_go_into_one_tree_for_the_jobs_verifier():
    fusing = Fuser([guessing("b", 2)], fakes.VOCAB, lambda _: None)
    fusing.expect([draft_job("r", [1, 1], ("a", "b"))])
    assert fusing.collect(0.0) == []
    fusing.receive(drafter_node(guessing("a", 1, 3)).run([draft_job("r", [1, 1])])[0])
    ((mailbox, tree),) = fusing.collect(0.0)
    assert (mailbox, tree.request_id, tree.base) == ("v", "r", 2)
    assert sorted(zip(tree.tokens, tree.proposers, strict=True)) == [(1, ("a",)), (2, ("b",)), (3, ("a",))]


def test_a_table_that_this_fusion_lacks_is_not_waited_for():
    fusing = Fuser([guessing("b", 2)], fakes.VOCAB, lambda _: None)
    fusing.expect([draft_job("r", [1, 1], ("b", "phrases"))])
    ((_, tree),) = fusing.collect(0.0)
    assert tree.tokens == (2,)


def test_a_due_round_makes_a_tree_of_what_there_is():
    fusing = Fuser([], fakes.VOCAB, lambda _: None)
    fusing.expect([draft_job("r", [1, 1])])
    assert fusing.wait_s(4.0) == 5.0
    ((_, tree),) = fusing.collect(9.0)
    assert tree.tokens == ()


def test_what_a_resident_says_of_others_is_dropped():
    fusing = Fuser([guessing("b", 2, request_id="nobody")], fakes.VOCAB, lambda _: None)
    fusing.expect([draft_job("r", [1, 1], ("b",))])
    ((_, tree),) = fusing.collect(0.0)
    assert tree.tokens == ()


def test_a_drafter_that_was_wrong_is_believed_less():
    fusing = Fuser([], fakes.VOCAB, lambda _: None)
    drafting = drafter_node(guessing("a", 7, confidences=(0.9,)))
    survivals = []
    for length in range(1, 30):
        fusing.expect([draft_job("r", [1] * length)])
        fusing.receive(drafting.run([draft_job("r", [1] * length)])[0])
        ((_, tree),) = fusing.collect(0.0)
        survivals.append(tree.survival[0])
    assert survivals[0] == pytest.approx(0.9)
    assert survivals[-1] < 0.4


def test_an_ended_sequence_gets_no_tree():
    fusing = Fuser([], fakes.VOCAB, lambda _: None)
    fusing.expect([draft_job("r", [1, 1])])
    fusing.expect([draft_job("r", [1, 1, 1], is_last=True)])
    assert fusing.collect(99.0) == []
