"""Test a drafter node and its fuser: drafts for another fuser, trees where this node alone drafts."""

from msgspec.structs import replace

from app.drafter.drafter import DrafterNode
from app.drafter.model import ModelDrafter
from app.fuser.fuser import Fuser
from app.pipeline import draft_and_fuse
from app.stages.draft.protocol import Drafter
from app.state import Guess
from tests import fakes
from tests.fakes import Scripted, ScriptedGuesser, draft_job, guessing


def segments(*drafters: Drafter, model_free: tuple[Drafter, ...] = ()) -> tuple[DrafterNode, Fuser]:
    """Make a drafter node whose mailbox is `n`, and its fuser."""
    return DrafterNode(drafters, lambda _: None, "n"), Fuser(model_free, fakes.VOCAB, lambda _: None)


def test_drafters_draft_where_asked_for_the_newest_job():
    a, b = guessing("a", 1), guessing("b", 2)
    jobs = [draft_job("r", [1]), draft_job("s", [1, 2], ("a", "b")), draft_job("r", [1, 5, 6])]
    drafts, trees = draft_and_fuse(*segments(a, b), jobs)
    assert trees == []
    assert sorted((draft.request_id, draft.drafter, draft.base) for draft in drafts) == [
        ("r", "a", 3),
        ("s", "a", 2),
        ("s", "b", 2),
    ]


def test_an_ended_sequence_gets_no_draft():
    a = guessing("a", 1)
    assert draft_and_fuse(*segments(a), [draft_job("r", [1], is_last=True)]) == ([], [])
    assert a.seen == []


def test_a_node_runs_ahead_on_pending_sequences_until_done():
    model = ScriptedGuesser(lambda read: Guess((read[-1] + 1) % fakes.VOCAB, 0.9, 0, 0.0))
    one, fuser = segments(ModelDrafter("a", model, 100), guessing("b", 2))
    draft_and_fuse(one, fuser, [replace(draft_job("r", [1]), step_s=1.0), draft_job("s", [1])])
    draft_and_fuse(one, fuser, [replace(draft_job("t", [1]), step_s=1.0), draft_job("t", [1], is_last=True)])
    model.calls.clear()
    steps = 0
    while one.has_ahead:
        one.run_ahead()
        steps += 1
        assert len(model.calls) <= steps, "one small step at a time"
    assert len(model.calls) == 4 + 1, "only r's: the target's own token, and as many as were asked for"
    draft_and_fuse(one, fuser, [draft_job("r", [1, 2, 3, 4, 5, 6]), draft_job("s", [1, 9])])
    assert one.info() == {"ahead_hits": 1, "ahead_misses": 0, "shared_guesses": 0}


def test_a_node_fuses_its_own_jobs_only():
    ours = replace(draft_job("r", [1], ("a", "b")), fuser="n")
    both = segments(guessing("a", 1, 3), model_free=(guessing("b", 2),))
    drafts, trees = draft_and_fuse(*both, [ours, draft_job("s", [1])])
    assert [draft.request_id for draft in drafts] == ["s"]
    ((mailbox, tree),) = trees
    assert (mailbox, tree.request_id, tree.base) == ("v", "r", 1)
    assert sorted(zip(tree.tokens, tree.proposers, strict=True)) == [(1, ("a",)), (2, ("b",)), (3, ("a",))]


def test_a_silent_drafter_gets_its_verifier_an_empty_tree():
    silent = Scripted("a", lambda context: [])
    jobs = [replace(draft_job("r", [1]), fuser="n")]
    ((_, tree),) = draft_and_fuse(*segments(silent), jobs)[1]
    assert tree.tokens == ()


class TickingClock:
    """A clock that goes on by a second at each look."""

    now_s = 0.0

    def thread_time(self) -> float:
        return self.perf_counter()

    def perf_counter(self) -> float:
        self.now_s += 1.0
        return self.now_s

    time = monotonic = perf_counter


def test_each_draft_of_a_model_carries_the_report_of_its_node():
    model = ScriptedGuesser(lambda read: Guess((read[-1] + 1) % fakes.VOCAB, 0.9, 0, 0.0))
    clock = TickingClock()
    one = DrafterNode([ModelDrafter("a", model, 100, clock=clock), guessing("b", 2)], lambda _: None, "n", clock=clock)
    fuser = Fuser([], fakes.VOCAB, lambda _: None)
    here = replace(draft_job("r", [1] * 40, ("a", "b")), fuser="n")
    (away,), ((_, tree),) = draft_and_fuse(one, fuser, [here, draft_job("s", [1, 2])])
    assert tree.reports.keys() == {"a"}, "what is no model reports nothing"
    report = tree.reports["a"]
    assert (report.read_tokens, report.read_s, report.seen, report.batch) == (39, 1.0, 40, 2)
    assert report.guess_s == 2.0 and report.guessed == 4
    assert away.report == replace(report, seen=2)
    ((_, tree),) = draft_and_fuse(one, fuser, [replace(draft_job("r", [1] * 40 + [2, 3, 4]), fuser="n")])[1]
    assert (tree.reports["a"].read_tokens, tree.reports["a"].read_s) == (0, 0.0)
