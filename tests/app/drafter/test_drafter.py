"""A drafter node: drafts where they are wanted, fused on the spot where no other node drafts."""

import pytest

from app.drafter.drafter import DrafterNode
from app.drafter.model import ModelDrafter
from app.drafter.token_fusion import TokenFusion
from app.fuser.fuser import Fuser
from app.state import Guess
from tests import fakes
from tests.fakes import Scripted, ScriptedGuesser, draft_job, drafter_node, guessing


def test_drafters_are_asked_where_they_are_wanted_and_for_the_newest_job_only():
    a, b = guessing("a", 1), guessing("b", 2)
    jobs = [draft_job("r", [1]), draft_job("s", [1, 2], ("a", "b")), draft_job("r", [1, 5, 6])]
    drafts, trees = drafter_node(a, b).run(jobs)
    assert trees == []
    assert sorted((draft.request_id, draft.drafter, draft.base) for draft in drafts) == [
        ("r", "a", 3),
        ("s", "a", 2),
        ("s", "b", 2),
    ]


def test_where_the_tables_are_sure_enough_no_model_is_run():
    model, table = guessing("a", 1, 3), guessing("b", 2, confidences=(0.7,))
    ours = drafter_node(model, residents=(table,))
    for base, enough, asked in ((1, 0.8, True), (2, 0.6, False), (3, 1.0, True)):
        model.seen.clear()
        wanted = draft_job("r", [1] * base, ("a", "b")).model_copy(update={"fuser": "n", "skip_models_above": enough})
        ((_, tree),) = ours.run([wanted])[1]
        assert bool(model.seen) is asked
        assert tree.skipped == (() if asked else ("a",))
        assert 2 in tree.tokens
        assert (1 in tree.tokens) is asked


def test_every_model_runs_where_another_node_fuses():
    model = guessing("a", 1)
    drafts, _ = drafter_node(model, residents=(guessing("b", 2),)).run(
        [draft_job("r", [1], ("a", "b")).model_copy(update={"skip_models_above": 0.0})]
    )
    assert [draft.drafter for draft in drafts] == ["a"]


def test_an_ended_sequence_gets_no_draft():
    a = guessing("a", 1)
    assert drafter_node(a).run([draft_job("r", [1], is_last=True)]) == ([], [])
    assert a.seen == []


def test_it_runs_ahead_on_what_is_pending_and_may_be_until_there_is_nothing_more_to_guess():
    model = ScriptedGuesser(lambda read: Guess((read[-1] + 1) % fakes.VOCAB, 0.9, 0, 0.0))
    one = drafter_node(ModelDrafter("a", model, 100), guessing("b", 2))
    one.run([draft_job("r", [1]).model_copy(update={"run_ahead": True}), draft_job("s", [1])])
    one.run([draft_job("t", [1]).model_copy(update={"run_ahead": True}), draft_job("t", [1], is_last=True)])
    model.calls.clear()
    steps = 0
    while one.has_ahead:
        one.run_ahead()
        steps += 1
        assert len(model.calls) <= steps, "one small step at a time"
    assert len(model.calls) == 4 + 1, "only r's: the target's own token, and as many as were asked for"
    one.run([draft_job("r", [1, 2, 3, 4, 5, 6]), draft_job("s", [1, 9])])
    assert one.ahead() == {"ahead_hits": 1, "ahead_misses": 0}


def test_drafters_that_share_their_tokens_answer_each_in_their_own_name():
    models = [
        ModelDrafter(name, ScriptedGuesser(lambda read, at=at: Guess(read[-1] + at, at / 3, 0, 0.0)), 100)
        for at, name in ((1, "a"), (2, "b"))
    ]
    together = TokenFusion(model.reader for model in models)
    one = DrafterNode([*models, guessing("c", 9)], lambda _: None, Fuser([], 61, lambda _: None), "n", together)
    drafts, _ = one.run([draft_job("r", [1], ("a", "b", "c"))])
    by_name = {draft.drafter: draft for draft in drafts}
    assert by_name["b"].tokens == (3, 5, 7, 9)
    assert [by_name["a"].tokens[node - 1] for node in by_name["a"].borrowed] == [3, 5, 7]
    assert by_name["b"].borrowed == by_name["c"].borrowed == ()
    one.run([draft_job("r", [1, 3], ("a", "b"), is_last=True)])
    assert not together.run_ahead(["r"])


def test_what_no_other_node_drafts_is_fused_on_the_spot_and_only_that():
    ours = draft_job("r", [1], ("a", "b")).model_copy(update={"fuser": "n"})
    drafts, trees = drafter_node(guessing("a", 1, 3), residents=(guessing("b", 2),)).run([ours, draft_job("s", [1])])
    assert [draft.request_id for draft in drafts] == ["s"]
    ((mailbox, tree),) = trees
    assert (mailbox, tree.request_id, tree.base) == ("v", "r", 1)
    assert sorted(zip(tree.tokens, tree.proposers, strict=True)) == [(1, ("a",)), (2, ("b",)), (3, ("a",))]


def test_a_node_that_fuses_learns_what_its_drafters_are_worth():
    ours = drafter_node(guessing("a", 7, confidences=(0.9,)))
    survivals = []
    for length in range(1, 30):
        ((_, tree),) = ours.run([draft_job("r", [1] * length).model_copy(update={"fuser": "n"})])[1]
        survivals.append(tree.survival[0])
    assert survivals[0] == pytest.approx(0.9)
    assert survivals[-1] < 0.4


def test_a_drafter_that_has_nothing_to_say_still_gets_its_verifier_an_answer():
    silent = Scripted("a", lambda context: [])
    ((_, tree),) = drafter_node(silent).run([draft_job("r", [1]).model_copy(update={"fuser": "n"})])[1]
    assert tree.tokens == ()
