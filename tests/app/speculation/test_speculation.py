"""Test how drafts are requested, waited for, received and learned from."""

import pytest

from app.assembly.verifier import routing
from app.config import Settings
from app.engine.step_costs import StepCosts
from app.messages import LEAST_SURVIVAL, DraftReport
from app.placement.interference import Interference
from app.placement.splits import in_turn_and_at_once
from app.policy import Policy
from app.request import SpeculationBounds
from app.scheduler.tree_budget import MOST_NODES
from app.speculation.baselines import FixedLength
from app.speculation.drafter_pool import DrafterPool
from app.speculation.joint import AFTER, FIRST, JointController
from app.speculation.length_protocol import LengthDecision
from app.speculation.overlap import AheadOverlap, NoOverlap
from app.speculation.routing import Router
from app.speculation.speculation import DraftStrategies, Speculation
from app.state import MAX_NODES, Prompts, Tree
from tests import fakes
from tests.app.verifier.parts import RunsAhead, drafts_asked, message, parts, start, verdict
from tests.fakes import VOCAB


def test_a_tree_for_the_present_length_is_received():
    one = parts()
    sequence = start(one, "r")
    one.speculation.receive(message())
    assert sequence.tree == Tree([1, 2], [0, 1], [0.9, 0.8], [("a",), ("a",)])


@pytest.mark.parametrize(
    "changes",
    [
        {"base": 4},
        {"base": 6},
        {"request_id": "nobody"},
        {"tokens": (1, VOCAB)},
        {"tokens": (1, -1)},
        {"tokens": (1,)},
        {"parents": (0, 2)},
        {"parents": (1, 0)},
        {"parents": (0, -1)},
        {"survival": (0.9, float("nan"))},
        {"survival": (0.9, float("inf"))},
        {"survival": (0.9,)},
        {"proposers": (("a",), ())},
        {"proposers": ()},
        {
            "tokens": (1,) * (MAX_NODES + 1),
            "parents": (0,) * (MAX_NODES + 1),
            "survival": (0.5,) * (MAX_NODES + 1),
            "proposers": (("a",),) * (MAX_NODES + 1),
        },
    ],
)
def test_a_stale_or_malformed_tree_changes_nothing(changes):
    one = parts()
    sequence = start(one, "r")
    one.speculation.receive(message(**changes))
    assert sequence.tree is None


def test_a_job_carries_only_tokens_not_sent_before():
    one = parts()
    sequence = start(one, "r", length=5, generated=1)
    (first,) = drafts_asked(one.speculation, [sequence], [3], Policy())
    sequence.kv.tokens += [7, 8]
    (second,) = drafts_asked(one.speculation, [sequence], [2], Policy())
    (last,) = one.speculation.final_jobs(sequence)
    assert (first.start, first.tokens, first.base, first.max_draft_tokens) == (0, (1,) * 5 + (2,), 6, 3)
    assert (second.start, second.tokens, second.base, second.max_draft_tokens) == (6, (7, 8), 8, 2)
    assert (last.start, last.tokens, last.is_last) == (8, (), True)
    assert first.drafters == ("small", "lookup")
    assert one.speculation.final_jobs(sequence) == [], "no replica follows it any more"


def test_drafts_of_one_node_are_fused_there_others_at_the_fuser():
    one = parts(routing="all")
    sequence = start(one, "r", length=5)
    (job,) = drafts_asked(one.speculation, [sequence], [3], Policy())
    assert (job.fuser, job.to, job.drafters) == ("draft:1", "draft:1", ("small", "lookup"))
    one.speculation.follow(DrafterPool({"small": "draft:1", "other": "draft:2"}, ("lookup",)))
    sequence.tokens.append(7)
    jobs = drafts_asked(one.speculation, [sequence], [3], Policy())
    assert {(job.to, job.drafters, job.fuser) for job in jobs} == {
        ("draft:1", ("small",), "fuse"),
        ("draft:2", ("other",), "fuse"),
        ("fuse", ("small", "other", "lookup"), "fuse"),
    }
    assert {job.to: job.tokens for job in jobs} == {
        "draft:1": (7,),
        "draft:2": (1, 1, 1, 1, 1, 7),
        "fuse": (1, 1, 1, 1, 1, 7),
    }, "each what it does not know"
    sequence.tokens.append(8)
    assert [job.tokens for job in drafts_asked(one.speculation, [sequence], [3], Policy())] == [(8,)] * 3
    one.speculation.follow(DrafterPool({}, ("lookup",), alone="verify:1"))
    (job,) = drafts_asked(one.speculation, [sequence], [3], Policy())
    assert (job.to, job.fuser, job.start) == ("verify:1", "verify:1", 0), "without others the verifier looks up itself"
    last = {job.to for job in one.speculation.final_jobs(sequence)}
    assert last == {"fuse", "verify:1"}, "of the others no node is alive"


def test_a_node_that_fuses_again_gets_the_tokens_its_fuser_missed():
    one = parts(routing="all")
    sequence = start(one, "r", length=5)
    both = DrafterPool({"small": "draft:1", "other": "draft:2"})
    for pool in (DrafterPool({"small": "draft:1"}), both, DrafterPool({"small": "draft:1"})):
        one.speculation.follow(pool)
        sequence.tokens.append(7)
        jobs = {job.to: job for job in drafts_asked(one.speculation, [sequence], [3], Policy())}
    assert (jobs["draft:1"].start, jobs["draft:1"].fuser) == (6, "draft:1")
    one.speculation.follow(both)
    last = {job.to: job for job in one.speculation.final_jobs(sequence)}
    assert {box: (job.start, job.fuser) for box, job in last.items()} == {
        "draft:1": (8, "draft:1"),
        "draft:2": (7, ""),
        "fuse": (7, "fuse"),
    }


def test_the_targets_state_goes_only_to_drafters_that_read_it():
    one = parts()
    sequence = start(one, "r", length=5)
    sequence.kv.state = b"\x00\x01"
    assert drafts_asked(one.speculation, [sequence], [3], Policy())[0].state is None
    one.speculation.follow(DrafterPool({"small": "draft:1"}, ("lookup",), readers=frozenset({"small"})))
    assert drafts_asked(one.speculation, [sequence], [3], Policy())[0].state == "AAE="
    sequence.kv.state = None
    assert drafts_asked(one.speculation, [sequence], [3], Policy())[0].state is None


def test_a_sequence_waits_for_its_tree_within_the_policys_bound():
    one = parts()
    eager, silent = start(one, "r"), start(one, "s")
    jobs = drafts_asked(one.speculation, [eager, silent], [3, 0], Policy(draft_wait_s=0.02))
    assert [job.request_id for job in jobs] == ["r"]
    assert eager.due_s == jobs[0].due_s > 0.0
    assert silent.due_s == 0.0


def test_the_policys_bound_spares_drafters_and_0_stops_all():
    one = parts()
    sequence = start(one, "r", max_tokens=50)
    for most, models, model_free in ((8, 8, 8), (2, 2, 8), (0, 0, 0)):
        policy = Policy(max_draft_tokens=most)
        assert one.speculation.limit(sequence, policy) == models
        assert one.speculation.limit(sequence, policy, is_model_free=True) == model_free
    shy = start(one, "s", max_tokens=50, speculation=SpeculationBounds(max_draft_tokens=1))
    assert one.speculation.limit(shy, Policy(max_draft_tokens=2), is_model_free=True) == 1


def test_stated_lengths_are_drafted_at_any_load_and_0_stops_them():
    for lengths, stated in (("fixed:6", 6), ("fixed:12", 12), ("tree:5", 5), ("faser", 8), ("cosine", 4)):
        one = parts(plan="vanilla", lengths=lengths)
        sequence = start(one, "r", max_tokens=50)
        assert [one.speculation.limit(sequence, Policy(max_draft_tokens=most)) for most in (4, 0)] == [stated, 0]
        shy = start(one, "s", max_tokens=50, speculation=SpeculationBounds(max_draft_tokens=1))
        assert one.speculation.limit(shy, Policy()) == 1
        assert one.speculation.limit(start(one, "t", max_tokens=3), Policy()) == 2


@pytest.mark.parametrize(
    ("wish", "share", "may"),
    [(AheadOverlap(), 0.0, True), (AheadOverlap(), 1.0, False), (RunsAhead(), 1.0, True), (NoOverlap(), 0.0, False)],
)
def test_drafters_run_ahead_where_they_take_no_cores_from_the_verifier(wish, share, may):
    one = parts(overlapping=wish, pool=DrafterPool({"small": "draft:1"}, (), share))
    sequence = start(one, "r")
    assert [job.step_s > 0.0 for job in drafts_asked(one.speculation, [sequence], [3], Policy())] == [may]
    assert not any(job.is_last and job.step_s for job in one.speculation.final_jobs(sequence))


def test_the_end_of_a_sequence_goes_to_no_node_that_has_no_replica():
    one = parts()
    assert one.speculation.final_jobs(start(one, "r")) == []


@pytest.mark.parametrize(
    ("wish", "limit"),
    [
        (SpeculationBounds(), 8),
        (SpeculationBounds(enabled=False), 0),
        (SpeculationBounds(max_draft_tokens=0), 0),
        (SpeculationBounds(max_draft_tokens=3), 3),
        (SpeculationBounds(max_draft_tokens=60), 8),
        (SpeculationBounds(drafters=("lookup",)), 8),
        (SpeculationBounds(drafters=("nobody",)), 0),
        (SpeculationBounds(drafters=()), 0),
    ],
)
def test_the_requests_own_bounds_hold(wish, limit):
    one = parts()
    assert one.speculation.limit(start(one, "r", max_tokens=50, speculation=wish), Policy(max_draft_tokens=8)) == limit


def test_the_policys_bounds_on_lengths_hold():
    one = parts(costs=StepCosts({1: 1.0, 64: 1.05}))
    one.lengths.modes.with_models.costs.update(1, 4, 0.001, [])
    sequences = [start(one, name, max_tokens=50) for name in "abc"]
    limited = start(one, "d", max_tokens=50, speculation=SpeculationBounds(max_draft_tokens=1))
    sequences.append(limited)

    def asked(**policy: object) -> list[int]:
        jobs = one.speculation.request_drafts(sequences, Policy(**policy))
        found = {job.request_id: job.max_draft_tokens for job in jobs if job.drafters}
        return [found.get(sequence.record.id, 0) for sequence in sequences]

    for sequence in sequences:
        for _ in range(60):
            one.lengths.modes.model_free.of(sequence.record).update(8, 0)
    assert asked(max_draft_tokens=2) == [2, 2, 2, 1]
    for sequence in sequences:
        for _ in range(60):
            for way in (one.lengths.modes.with_models, one.lengths.modes.model_free):
                way.of(sequence.record).update(8, 0)
    one = one.repriced(StepCosts({1: 1.0, 2: 2.0, 64: 64.0}))
    for _ in range(30):
        nothing = asked()
    assert nothing == [0, 0, 0, 0]
    assert asked(min_draft_tokens=2) == [2, 2, 2, 1], "whatever it is believed to gain, within a request's own bounds"
    assert asked(min_draft_tokens=2, max_draft_tokens=1) == [2, 2, 2, 1], "no model is asked: drafters are spared"


def test_a_lone_sequence_asks_model_free_drafters_for_all_it_may():
    costs = StepCosts({1: 1.0, 4: 1.2, 5: 4.0})
    one = parts(costs=costs, pool=DrafterPool(model_free=("lookup",)))
    sequences = [start(one, name, max_tokens=50) for name in "ab"]
    for sequence in sequences:
        for _ in range(60):
            one.lengths.modes.model_free.of(sequence.record).update(8, 1)

    def asked(*wanted: object) -> set[int]:
        return {
            job.max_draft_tokens
            for job in one.speculation.request_drafts([*wanted], Policy(max_draft_tokens=6))
            if job.drafters
        }

    assert asked(sequences[0]) == {8}
    assert max(asked(*sequences)) < 6


def test_no_draft_token_is_requested_beyond_the_requests_room():
    one = parts()
    for generated, limit in ((0, 4), (2, 2), (4, 0)):
        assert one.speculation.limit(start(one, "r", max_tokens=5, generated=generated), Policy()) == limit


def test_a_stopped_sequence_leaves_nothing_behind():
    one = parts()
    sequence = start(one, "r", strikes=1)
    drafts_asked(one.speculation, [sequence], [2], Policy())
    one.sequences.reserve([fakes.work(sequence, 0)])
    assert one.sequences.stop("r") is sequence
    assert one.sequences.stop("r") is None
    one.speculation.remove("r")
    assert (one.sequences, one.sequences.suspects) == ({}, set())
    assert one.runner.pool.num_free == one.runner.pool.num_pages
    before = one.draft_costs.seconds(1, 2)
    one.speculation.receive(message())
    assert one.draft_costs.seconds(1, 2) == before, "its drafts are not waited for any more"
    assert one.speculation.final_jobs(sequence) == [], "none holds a replica of it"


def test_rounds_that_asked_models_are_counted():
    one = parts()
    sequence = start(one, "r", generated=0)
    verdict(one, sequence, [2])
    assert (one.stats.later_rounds, one.stats.model_rounds) == (0, 0), "the first token has no draft"
    sequence.kv.tokens.append(2)
    for arrives, is_model_free, counts in (
        ({}, False, (1, 1)),
        (None, False, (2, 2)),
        ({}, True, (3, 2)),
    ):
        drafts_asked(one.speculation, [sequence], [3], Policy(), is_model_free=is_model_free)
        if arrives is not None:
            one.speculation.receive(message(base=6, **arrives))
        verdict(one, sequence, [1, 7])
        assert (one.stats.later_rounds, one.stats.model_rounds) == counts
    verdict(one, sequence, [1])
    report = one.stats.report(one.sequences.all())
    assert (report["later_rounds"], report["model_rounds"]) == (4, 2), "no drafter was asked for the last one"


def test_halves_that_draft_nothing_go_together_again():
    one = parts(
        costs=StepCosts({1: 0.010, 64: 0.640}), overlap="halves", pool=DrafterPool({"small": "draft:1"}, (), 0.0)
    )
    for depth in (1, 2):
        for _ in range(20):
            one.draft_costs.update(
                4, depth, 0.001 + 0.0008 * depth, [DraftReport(guess_s=0.0008 * depth, guessed=depth)]
            )
    sequences = [start(one, name) for name in "abcd"]
    for sequence in sequences:
        for _ in range(80):
            one.lengths.modes.with_models.of(sequence.record).update(8, 0)
    drafts_asked(one.speculation, sequences, [8] * 4, Policy())
    assert not one.speculation.request_drafts(sequences, Policy())
    assert not one.speculation.is_together, "by the drafts before"
    one.speculation.request_drafts(sequences, Policy())
    assert one.speculation.is_together, "there is nothing to hide"


def test_baseline_lengths_draft_chains_and_verify_all_of_them():
    one = parts(lengths="fixed:3")
    sequence, bounded = (
        start(one, "r", max_tokens=50),
        start(one, "s", max_tokens=50, speculation=SpeculationBounds(max_draft_tokens=1)),
    )
    for _ in range(80):
        one.lengths.modes.with_models.of(sequence.record).update(8, 0)
    jobs = one.speculation.request_drafts([sequence, bounded], Policy())
    assert {(job.request_id, job.max_draft_tokens) for job in jobs} == {("r", 3), ("s", 1)}
    assert not any(job.has_leaves for job in jobs), "they would take the places of the chain's last tokens"
    one.speculation.receive(
        message(tokens=(1, 9, 2), parents=(0, 0, 1), survival=(0.5, 0.3, 0.2), proposers=(("a",),) * 3)
    )
    assert sequence.tree == Tree([1, 2], [0, 1], [0.5, 0.2], [("a",), ("a",)])
    assert one.speculation.request_drafts([sequence], Policy(max_draft_tokens=0)) == []


def test_models_grow_trees_at_a_rows_price_where_lengths_follow_the_gain():
    of = {lengths: parts(lengths=lengths) for lengths in ("marginal", "fixed:3")}
    (grown,), (path,) = (drafts_asked(one.speculation, [start(one, "r")], [3], Policy()) for one in of.values())
    assert (grown.max_nodes, path.max_nodes, path.least_survival) == (MOST_NODES, 0, LEAST_SURVIVAL)
    assert grown.has_leaves
    assert grown.pace > 0.0 and grown.least_survival != LEAST_SURVIVAL
    (alone,) = drafts_asked(of["marginal"].speculation, [start(of["marginal"], "s")], [3], Policy(), is_model_free=True)
    assert (alone.max_nodes, alone.pace) == (0, 0.0), "tables draft as they do"


def test_the_controllers_split_is_the_machines_and_that_of_the_costs():
    splits = Chosen()
    strategies = DraftStrategies(
        planner := JointController(FixedLength(2), splits.all), Router(routing(Settings())), planner, splits=splits
    )
    one = parts(costs=StepCosts({1: 0.001, 64: 0.064}))
    costs = StepCosts({1: 0.001, 64: 0.064})
    speculation = Speculation(one.sequences, costs, VOCAB, strategies, "mailbox")
    speculation.follow(one.speculation.pool)
    speculation.expect(1, Interference(0.25, 1.0))  # at once everything takes a quarter: it must be chosen
    sequences = [start(one, f"r{i}") for i in range(4)]
    for _ in range(FIRST + AFTER + 1):
        speculation.request_drafts(sequences, Policy())
    assert splits.used == [1] and speculation.split == splits.all[1]
    assert costs.seconds(8) == pytest.approx(0.25 * costs.at(0).seconds(8))
    assert planner.modes.with_models.costs.split == 1


class Chosen:
    """Splits that remember which are used."""

    all = in_turn_and_at_once(0, [1])

    def __init__(self) -> None:
        self.used: list[int] = []

    def use(self, number: int) -> None:
        self.used.append(number)


@pytest.mark.parametrize(("core_share", "wait_s"), [(0.0, 0.114), (1.0, 0.014)])
def test_prompts_that_drafters_would_hold_up_make_no_draft_worth_more(core_share, wait_s, monkeypatch):
    one = parts(pool=DrafterPool({"small": "draft:1"}, (), core_share))
    for _ in range(9):
        one.draft_costs.update(1, 4, 0.014, [DraftReport(guess_s=0.012, guessed=4)])
    monkeypatch.setattr(one.lengths, "plan", lambda batch: LengthDecision([4], False, 0.0, price=None))
    waiting, _ = start(one, "r", max_tokens=50), start(one, "new")
    one.speculation.request_drafts([waiting], Policy(draft_wait_factor=1000.0), Prompts(rows=50, seconds=0.1, ends=1))
    assert waiting.due_s - one.speculation._clock.time() == pytest.approx(wait_s, abs=0.01)
