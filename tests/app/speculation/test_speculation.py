"""Test how drafts are requested, waited for, received and learned from."""

import pytest

from app.assembly.verifier import routing
from app.config import Settings
from app.drafter.drafter import in_time
from app.engine.step_costs import StepCosts
from app.placement.interference import Interference
from app.placement.splits import in_turn_and_at_once
from app.policy import Policy
from app.request import SpeculationBounds
from app.speculation.baselines import FixedLength
from app.speculation.draft_costs import DraftCosts
from app.speculation.draft_waits import FIRST_WAITS, MIN_WAIT_S, ROUND_TOKENS
from app.speculation.drafter_pool import DrafterPool
from app.speculation.joint import AFTER, FIRST, JointController
from app.speculation.overlap import AutoOverlap, NoOverlap
from app.speculation.routing import Router
from app.speculation.speculation import DraftStrategies, Speculation
from app.state import MAX_NODES, Tree
from tests import fakes
from tests.app.verifier.parts import HandClock, RunsAhead, message, parts, start
from tests.fakes import VOCAB

NOW_S = 1000.0


class Still:
    """A clock that stands still."""

    def time(self) -> float:
        return NOW_S

    monotonic = perf_counter = time


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
    (first,) = one.speculation.jobs([sequence], [3], Policy())
    sequence.kv.tokens += [7, 8]
    (second,) = one.speculation.jobs([sequence], [2], Policy())
    (last,) = one.speculation.final_jobs(sequence)
    assert (first.start, first.tokens, first.base, first.max_draft_tokens) == (0, (1,) * 5 + (2,), 6, 3)
    assert (second.start, second.tokens, second.base, second.max_draft_tokens) == (6, (7, 8), 8, 2)
    assert (last.start, last.tokens, last.is_last) == (8, (), True)
    assert first.drafters == ("small", "lookup")
    assert one.speculation.final_jobs(sequence) == [], "no replica follows it any more"


def test_drafts_of_one_node_are_fused_there_others_at_the_fuser():
    one = parts(routing="all")
    sequence = start(one, "r", length=5)
    (job,) = one.speculation.jobs([sequence], [3], Policy())
    assert (job.fuser, job.to, job.drafters) == ("draft:1", "draft:1", ("small", "lookup"))
    one.speculation.follow(DrafterPool({"small": "draft:1", "other": "draft:2"}, ("lookup",)))
    sequence.tokens.append(7)
    jobs = one.speculation.jobs([sequence], [3], Policy())
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
    assert [job.tokens for job in one.speculation.jobs([sequence], [3], Policy())] == [(8,)] * 3
    one.speculation.follow(DrafterPool({}, ("lookup",), alone="verify:1"))
    (job,) = one.speculation.jobs([sequence], [3], Policy())
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
        jobs = {job.to: job for job in one.speculation.jobs([sequence], [3], Policy())}
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
    assert one.speculation.jobs([sequence], [3], Policy())[0].state is None
    one.speculation.follow(DrafterPool({"small": "draft:1"}, ("lookup",), readers=frozenset({"small"})))
    assert one.speculation.jobs([sequence], [3], Policy())[0].state == "AAE="
    sequence.kv.state = None
    assert one.speculation.jobs([sequence], [3], Policy())[0].state is None


def test_a_sequence_waits_for_its_tree_within_the_policys_bound():
    one = parts()
    eager, silent = start(one, "r"), start(one, "s")
    jobs = one.speculation.jobs([eager, silent], [3, 0], Policy(draft_wait_s=0.02))
    assert [job.request_id for job in jobs] == ["r"]
    assert eager.due_s == jobs[0].due_s > 0.0
    assert silent.due_s == 0.0


def test_late_trees_are_waited_for_no_longer_than_they_are_worth():
    one = parts(clock=Still())
    for _ in range(20):
        one.draft_costs.update(1, 3, 0.010)
    usual_s = one.draft_costs.seconds(1, 3)
    for worth, wait_s in ((0.0, usual_s), (0.004, usual_s + 0.004), (9.0, max(MIN_WAIT_S, 3.0 * usual_s))):
        sequence = start(one, "r")
        one.speculation.jobs([sequence], [3], Policy(), worth_s=worth)
        assert sequence.due_s - NOW_S == pytest.approx(wait_s)


def test_the_policys_bound_spares_drafters_and_0_stops_all():
    one = parts()
    sequence = start(one, "r", max_tokens=50)
    for most, models, model_free in ((8, 8, 8), (2, 2, 8), (0, 0, 0)):
        policy = Policy(max_draft_tokens=most)
        assert one.speculation.limit(sequence, policy) == models
        assert one.speculation.limit(sequence, policy, is_model_free=True) == model_free
    shy = start(one, "s", max_tokens=50, speculation=SpeculationBounds(max_draft_tokens=1))
    assert one.speculation.limit(shy, Policy(max_draft_tokens=2), is_model_free=True) == 1


@pytest.mark.parametrize(
    ("wish", "share", "may"),
    [(AutoOverlap(), 0.0, True), (AutoOverlap(), 1.0, False), (RunsAhead(), 1.0, True), (NoOverlap(), 0.0, False)],
)
def test_drafters_run_ahead_where_they_take_no_cores_from_the_verifier(wish, share, may):
    one = parts(overlapping=wish, pool=DrafterPool({"small": "draft:1"}, (), share))
    sequence = start(one, "r")
    assert [job.run_ahead for job in one.speculation.jobs([sequence], [3], Policy())] == [may]
    assert not any(job.is_last and job.run_ahead for job in one.speculation.final_jobs(sequence))


@pytest.mark.parametrize(
    ("wish", "added_s", "share", "may"),
    [
        (NoOverlap(), 1.0, 0.0, True),
        (RunsAhead(), 1.0, 0.0, False),
        (NoOverlap(), 0.0, 0.0, False),
        (NoOverlap(), 0.0, 1.0, True),
    ],
    ids=["alone", "models run ahead", "a sequence adds nothing", "on the verifier's cores"],
)
def test_models_are_skipped_only_where_that_saves_time(wish, added_s, share, may):
    """Four sequences whose model-free drafters are right as often as all are."""
    one = parts(overlapping=wish, pool=DrafterPool({"small": "draft:1"}, ("lookup",), share))
    sequences = [start(one, name) for name in "abcd"]
    for sequence in sequences:
        for _ in range(30):
            for mode in (one.lengths.modes.with_models, one.lengths.modes.model_free):
                mode.of(sequence.record).update(4, 2)
    for batch in (1, 2, 4):
        for _ in range(5):
            one.speculation.pending.model_costs.update(batch, 3, 1.0 + batch * added_s)
    jobs = one.speculation.jobs(sequences, [3] * 4, Policy())
    assert [job.skip_models_above < 1.0 for job in jobs] == [may] * 4


def test_a_probe_shows_only_that_drafts_take_less():
    """Before it drafters read what was committed while they were not asked."""
    one = parts(clock=(clock := HandClock()))
    for _ in range(9):
        one.draft_costs.update(1, 1, 0.020)
    sequence = start(one, "r", length=5, generated=1)
    for took_s, shown_s, depth in ((0.020, 0.020, 1), (0.060, 0.020, 0), (0.005, 0.005, 0)):
        one.speculation.jobs([sequence], [depth], Policy(), [not depth])
        clock.now_s += took_s
        one.speculation.receive(message(base=len(sequence.tokens), models_s=0.9 * took_s, confidence={"small": 0.9}))
        assert one.draft_costs.seconds(1, 1) == pytest.approx(shown_s, rel=0.2)
        sequence.kv.tokens.append(7)


@pytest.mark.parametrize(("wish", "share", "may"), [("auto", 0.0, True), ("none", 0.0, False), ("auto", 1.0, False)])
def test_slow_drafters_that_run_ahead_are_asked(wish, share, may):
    """A guess takes as long as a step, and is right nearly always: drafted beside the step it costs little."""
    pool, clock = DrafterPool({"small": "draft:1"}, (), share), HandClock()
    one = parts(costs=StepCosts({1: 0.050, 64: 0.051}), overlap=wish, pool=pool, clock=clock)
    sequence = start(one, "r", max_tokens=90, generated=1)
    for _ in range(60):
        one.lengths.modes.with_models.of(sequence.record).update(8, 8)
    for depth in (1, 4):
        for _ in range(9):
            one.draft_costs.update(1, depth, 0.120 * depth)
            one.lengths.modes.guessing.update(1, depth, 0.040 * depth)
    one.speculation.jobs([sequence], [1], Policy())  # the tokens so far are read there
    clock.now_s += 0.120
    one.speculation.receive(message(base=len(sequence.tokens), confidence={"small": 0.9}))
    sequence.kv.tokens.append(7)
    jobs = one.speculation.request_drafts([sequence], Policy())
    assert [job.run_ahead for job in jobs] == [True] * may


def test_far_drafters_are_not_asked_for_what_running_ahead_cannot_hide():
    """The way to them takes longer than a step, which a chunk of any size pays."""
    pool, clock = DrafterPool({"small": "draft:1"}, ()), HandClock()
    one = parts(costs=StepCosts({1: 0.030, 64: 0.031}), overlap="auto", pool=pool, clock=clock)
    sequence = start(one, "r", max_tokens=90, generated=1)
    for i in range(40):
        depth = 1 + i % 2
        one.speculation.jobs([sequence], [depth], Policy())
        clock.now_s += 0.040 + 0.003 * depth
        one.speculation.receive(
            message(base=len(sequence.tokens), models_s=0.003 * depth, guessed=depth, confidence={"small": 0.9})
        )
        one.lengths.modes.with_models.of(sequence.record).update(2, 1)
        sequence.kv.tokens.append(7)
    assert one.speculation.pending.hop_s == pytest.approx(0.040)
    assert not one.speculation.request_drafts([sequence], Policy())


def test_of_a_round_that_another_node_fuses_all_but_the_guess_is_the_way():
    """Such a round is open while drafts are on their way: running ahead hides none of that."""
    pool, clock = DrafterPool({"small": "draft:1"}, ()), HandClock()
    one = parts(costs=StepCosts({1: 0.030, 64: 0.031}), overlap="auto", pool=pool, clock=clock)
    sequence = start(one, "r", max_tokens=90, generated=1)
    for i in range(40):
        is_alone = i < 20  # then its own node fuses, and says what its models took
        one.speculation.jobs([sequence], [1], Policy())
        clock.now_s += 0.005 if is_alone else 0.025
        models_s, guessed = (0.003, 1) if is_alone else (0.023, 0)
        one.speculation.receive(
            message(base=len(sequence.tokens), models_s=models_s, guessed=guessed, confidence={"small": 0.9})
        )
        sequence.kv.tokens.append(7)
        if i == 19:
            assert one.speculation.pending.hop_s == pytest.approx(0.002)
    assert one.speculation.pending.drafting_s(1, 1) == pytest.approx(0.003)
    assert one.speculation.pending.hop_s == pytest.approx(0.022)


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
    sequences = [start(one, name, max_tokens=50) for name in "abc"]
    limited = start(one, "d", max_tokens=50, speculation=SpeculationBounds(max_draft_tokens=1))
    sequences.append(limited)

    def asked(**policy: object) -> list[int]:
        jobs = one.speculation.request_drafts(sequences, Policy(**policy))
        found = {job.request_id: job.max_draft_tokens for job in jobs if job.drafters}
        return [found.get(sequence.record.id, 0) for sequence in sequences]

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
            one.lengths.modes.with_models.of(sequence.record).update(8, 1)

    def asked(*wanted: object) -> set[int]:
        return {
            job.max_draft_tokens
            for job in one.speculation.request_drafts([*wanted], Policy(max_draft_tokens=6))
            if job.drafters
        }

    assert asked(sequences[0]) == {6}
    assert max(asked(*sequences)) < 6


def test_drafts_are_waited_for_by_the_policys_factor_and_bound():
    one = parts(clock=(clock := HandClock()))
    for _ in range(50):
        one.draft_costs.update(1, 3, 0.2)
    usual_s = one.draft_costs.seconds(1, 3)
    sequence = start(one, "r")
    for policy, wait_s in (
        (Policy(draft_wait_s=5.0), 3.0 * usual_s),
        (Policy(draft_wait_s=5.0, draft_wait_factor=1.5), 1.5 * usual_s),
        (Policy(draft_wait_s=0.05), 0.05),
    ):
        one.speculation.jobs([sequence], [3], policy)
        assert sequence.due_s - clock.now_s == pytest.approx(wait_s)


def test_no_draft_token_is_requested_beyond_the_requests_room():
    one = parts()
    for generated, limit in ((0, 4), (2, 2), (4, 0)):
        assert one.speculation.limit(start(one, "r", max_tokens=5, generated=generated), Policy()) == limit


def test_a_stopped_sequence_leaves_nothing_behind():
    one = parts()
    sequence = start(one, "r", strikes=1)
    one.speculation.jobs([sequence], [2], Policy())
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


def test_a_probe_is_not_waited_for_and_a_late_tree_is_learnt_from():
    one = parts()
    sequence = start(one, "r")
    (job,) = one.speculation.jobs([sequence], [0], Policy(), [True])
    assert (job.base, job.max_draft_tokens) == (5, 1)
    assert sequence.due_s == 0.0, "it goes on at once"
    before = one.draft_costs.seconds(1, 1)
    expectation = one.lengths.modes.with_models.of(sequence.record)
    (hopeful,) = expectation.survival(1)
    sequence.tokens.append(9)  # committed in the meantime
    one.speculation.receive(message(tokens=(4,), parents=(0,), survival=(0.9,), proposers=(("a",),)))
    assert sequence.tree is None, "too late to be verified"
    assert expectation.survival(1)[0] < hopeful, "but it was wrong"
    assert one.draft_costs.seconds(1, 1) == before, "its time shows nothing: there was no wait"
    lowered = expectation.survival(1)[0]
    one.speculation.receive(message(tokens=(4,), parents=(0,), survival=(0.9,), proposers=(("a",),)))
    assert expectation.survival(1)[0] == lowered, "the same answer again is none"


def test_a_probe_reaches_drafters_in_time_and_shows_what_one_token_takes():
    one = parts(clock=(clock := HandClock()))
    sequence = start(one, "r")
    for _ in range(50):
        one.draft_costs.update(1, 1, 0.08)
    for _ in range(30):
        (job,) = one.speculation.jobs([sequence], [0], Policy(), [True])
        assert in_time([job], clock.now_s + 0.1) == [job], "a drafter takes it, though its sequence goes on"
        clock.now_s += 1.0  # the verifier was in a step meanwhile
        one.speculation.receive(message(base=len(sequence.tokens), models_s=0.02))
    assert one.draft_costs.seconds(1, 1) == pytest.approx(0.08, rel=0.1), "how long the way takes is not known"
    one.speculation.jobs([sequence], [1], Policy())
    clock.now_s += 0.025
    one.speculation.receive(message(base=len(sequence.tokens), models_s=0.02))
    for _ in range(30):
        one.speculation.jobs([sequence], [0], Policy(), [True])
        clock.now_s += 1.0
        one.speculation.receive(message(base=len(sequence.tokens), models_s=0.02))
    assert one.draft_costs.seconds(1, 1) == pytest.approx(0.025, rel=0.1)


def test_a_tree_that_lies_in_the_mailbox_during_a_step_took_no_longer():
    one = parts(clock=(clock := HandClock()))
    sequence = start(one, "r")
    for came_s in [0.022, 0.022, *[0.06] * 12]:
        one.speculation.jobs([sequence], [3], Policy())
        clock.now_s += came_s
        one.speculation.receive(message(base=len(sequence.tokens), models_s=0.02))
    assert one.draft_costs.seconds(1, 3) == pytest.approx(0.022, rel=0.1)
    one.speculation.jobs([sequence], [3], Policy())
    clock.now_s += 0.03
    one.speculation.receive(message(base=len(sequence.tokens), models_s=1e9))
    assert one.draft_costs.seconds(1, 3) < 0.03, "what cannot be is not believed"


def test_the_error_of_draft_costs_counts_a_batch_once():
    one = parts(clock=(clock := HandClock()))
    sequences = [start(one, name) for name in "ab"]
    for _ in range(30):
        one.draft_costs.update(2, 3, 0.04)
    expected_s = one.draft_costs.seconds(2, 3)
    one.speculation.jobs(sequences, [3, 3], Policy())
    clock.now_s += 0.08
    for sequence in sequences:  # after the first answer more is expected
        one.speculation.receive(message(request_id=sequence.record.id, base=len(sequence.tokens)))
    assert one.speculation.pending.error.value == pytest.approx(1.0 - expected_s / 0.08, rel=0.01)
    assert one.draft_costs.seconds(2, 3) > 1.05 * expected_s


def test_answers_that_come_together_teach_what_they_teach_one_by_one():
    found = []
    for is_together in (True, False):
        one = parts(clock=(clock := HandClock()))
        sequences = [start(one, name) for name in "abcd"]
        for _ in range(30):
            one.draft_costs.update(4, 3, 0.04)
        one.speculation.jobs(sequences, [3] * 4, Policy())
        clock.now_s += 0.06
        answers = [answer(5, request_id=name, models_s=0.05, guessed=3) for name in "abc"]
        answers.append(answer(5, request_id="d", skipped=("small",)))
        for some in [answers] if is_together else [[own] for own in answers]:
            one.speculation.receive(*some)
        pending = one.speculation.pending
        found.append((one.draft_costs.seconds(4, 3), pending.model_costs.seconds(4, 3), one.stats._waits))
    assert found[0] == pytest.approx(found[1], rel=0.02) and found[0][0] > 0.041


@pytest.mark.parametrize("core_share", [1.0, 0.0])
def test_what_drafters_take_beside_a_step_on_the_same_cores_is_not_what_drafting_takes(core_share):
    one = parts(clock=(clock := HandClock()), pool=DrafterPool({"small": "draft:1"}, core_share=core_share))
    sequence = start(one, "r")
    for _ in range(30):
        one.draft_costs.update(1, 3, 0.02)
    for _ in range(30):
        one.speculation.jobs([sequence], [3], Policy())
        one.speculation.record_step(clock.now_s + 0.001, 0.03)  # it reads another's prompt meanwhile
        clock.now_s += 0.05
        one.speculation.receive(message(base=len(sequence.tokens), models_s=0.05))
    assert one.draft_costs.seconds(1, 3) == pytest.approx(0.02 if core_share else 0.05, rel=0.1)


def test_where_nothing_else_is_known_a_step_beside_drafts_had_half_of_the_time():
    one = parts(clock=(clock := HandClock()), pool=DrafterPool({"small": "draft:1"}))
    sequence = start(one, "r")
    one.speculation.jobs([sequence], [3], Policy())
    one.speculation.record_step(clock.now_s + 0.001, 0.05)
    clock.now_s += 0.025
    one.speculation.receive(message(base=len(sequence.tokens), models_s=0.025))
    assert one.draft_costs.seconds(1, 3) == pytest.approx(0.013, rel=0.1)
    one.speculation.jobs([sequence], [3], Policy())
    clock.now_s += 0.008
    one.speculation.receive(message(base=len(sequence.tokens), models_s=0.008))
    assert one.draft_costs.seconds(1, 3) == pytest.approx(0.008, rel=0.1), "alone"


def with_much_to_read(**settings):
    """Make parts that know what drafting and reading take, and a sequence that no drafter has read: for 0.2 s."""
    one, token_s = parts(pages=256, clock=HandClock(), **settings), 0.001
    for _ in range(8):
        one.draft_costs.update(1, 4, 0.010)
    one.draft_costs.update(1, 4, 0.010 + 1000 * token_s, 1000)
    return one, start(one, "r", length=200, generated=1)


def test_drafts_before_which_much_must_be_read_are_not_waited_for():
    one, sequence = with_much_to_read()
    own, reading = one.speculation.jobs([sequence], [4], Policy(), worth_s=0.050)
    assert (own.drafters, own.to, own.max_draft_tokens) == (("lookup",), "fuse", 4), "tables draft meanwhile"
    assert (reading.drafters, reading.to, reading.start, reading.skip_models_above) == (("small",), "draft:1", 0, 1.0)
    read_s = 201 * 0.001
    assert reading.due_s == pytest.approx(NOW_S + Policy().draft_wait_s + 2 * read_s), "it has time to read"
    other = start(one, "s", length=200, generated=1)
    (own,) = one.speculation.jobs([other], [4], Policy(), worth_s=1.0)
    assert other.due_s > NOW_S and own.drafters == ("small", "lookup"), "worth the wait"


def test_a_sequence_that_no_model_drafts_for_goes_with_one_that_models_must_read():
    one, reader = with_much_to_read()
    other = start(one, "s", generated=1, speculation=SpeculationBounds(drafters=("lookup",)))
    jobs = one.speculation.jobs([reader, other], [4, 4], Policy(), worth_s=1.0)
    assert {(job.request_id, job.drafters) for job in jobs if job.to == "fuse"} == {("s", ("lookup",))}


def answer(base, **changes):
    """Make the answer to the job at this length."""
    values = {"base": base, "survival": (0.9, 0.8), "confidence": {"small": 0.9}}
    return message(**{**values, **changes})


def asked_of(jobs) -> dict[tuple[str, str], int]:
    """Return the draft tokens by request and model drafter."""
    return {(job.request_id, name): job.max_draft_tokens for job in jobs for name in job.drafters if name != "lookup"}


def test_while_drafters_read_a_sequence_others_draft_for_it():
    one, sequence = with_much_to_read()
    assert asked_of(one.speculation.jobs([sequence], [4], Policy(), worth_s=0.050)) == {("r", "small"): 1}
    one.speculation.receive(answer(201, confidence={"lookup": 0.9}, proposers=(("lookup",),) * 2))
    assert sequence.tree is not None
    one.speculation.record_verdicts([(sequence, [1, 7])])
    before = one.lengths.modes.with_models.of(sequence.record).survival(2)
    for token in range(5):
        sequence.kv.tokens += [token]
        (own,) = one.speculation.jobs([sequence], [4], Policy(), worth_s=0.050)
        assert own.drafters == ("lookup",), "the model is at the prompt yet"
        one.speculation.receive(
            answer(201 + token + 1, confidence={}, tokens=(), parents=(), survival=(), proposers=())
        )
    assert one.lengths.modes.with_models.of(sequence.record).survival(2) == before
    one.speculation.receive(answer(201))
    assert sequence.tree is not None and not sequence.tree.tokens, "what it guessed there is of no use any more"
    (job,) = one.speculation.jobs([sequence], [4], Policy(), worth_s=0.050)
    assert job.drafters == ("small", "lookup") and job.tokens == tuple(range(5)), "it has answered, five rounds late"


def test_a_drafter_that_never_answers_is_asked_again():
    one, sequence = with_much_to_read()
    depths = []
    for _ in range(4):
        depths += asked_of(one.speculation.jobs([sequence], [4], Policy(), worth_s=0.050)).values()
        one.speculation._clock.now_s += Policy().draft_wait_s + 0.5
    assert depths == [1, 4, 4, 4], "its model may be too short to answer"


def test_an_answer_that_is_always_a_round_late_says_what_was_read():
    """Or every round would count as one of reading, and teach nothing of how long drafts take."""
    one, sequence = with_much_to_read()
    for late in range(4):
        asked = asked_of(one.speculation.jobs([sequence], [4], Policy(), worth_s=0.050))
        assert asked == ({}, {("r", "small"): 4}, {("r", "small"): 1})[(late > 1) - (late == 0)]
        if late:
            one.speculation.receive(answer(201 + late - 1))
        sequence.kv.tokens += [7]


def test_a_late_answer_does_not_make_reading_look_free():
    """The job after it had nothing left to read, and came at once."""
    one, sequence = with_much_to_read()
    before = one.draft_costs.read_s(1000)
    one.speculation.jobs([sequence], [4], Policy(), worth_s=9.0)
    one.speculation._clock.now_s += 0.3
    sequence.kv.tokens += [7]
    one.speculation.jobs([sequence], [4], Policy(), worth_s=9.0)
    one.speculation.receive(answer(201, models_s=0.21))
    one.speculation.receive(answer(202, models_s=0.001))
    assert one.draft_costs.read_s(1000) == pytest.approx(before, rel=0.1)


def test_a_batch_teaches_what_reading_takes_once():
    one, _ = with_much_to_read()
    sequences = [start(one, name, length=200, generated=1) for name in "stu"]
    one.speculation.jobs(sequences, [4, 4, 4], Policy(draft_wait_s=9.0), worth_s=9.0)
    one.speculation._clock.now_s += 0.3
    for name in "stu":
        one.speculation.receive(answer(201, request_id=name, models_s=0.29))
    assert len(one.draft_costs._reading_s) == 2, "once before"


def test_only_the_node_that_reads_is_left_out():
    one, _ = with_much_to_read(routing="all")
    one.speculation.follow(DrafterPool({"small": "draft:1", "other": "draft:2"}, ()))

    def begin(name, length=5, drafters=("small",)):
        return start(one, name, length, generated=1, speculation=SpeculationBounds(drafters=drafters))

    reader, near, far = begin("reader", 200), begin("near"), begin("far", drafters=("other",))
    both = begin("both", drafters=("small", "other"))

    def ask(*sequences):
        return asked_of(one.speculation.jobs([*sequences], [4] * len(sequences), Policy(), worth_s=0.050))

    asked = ask(reader, near, far, both)
    assert asked == {("reader", "small"): 1, ("far", "other"): 4, ("both", "other"): 4}
    assert (reader.due_s, near.due_s) == (0.0, 0.0) and far.due_s > NOW_S and both.due_s > NOW_S
    assert ask(near, far, both) == {("far", "other"): 4, ("both", "other"): 4}, "its node is at the prompt"
    one.speculation.receive(answer(201, request_id="reader"))
    assert ask(near) == {("near", "small"): 4}


def test_a_node_whose_drafts_miss_the_others_teaches_nothing_of_reading():
    one, _ = with_much_to_read(routing="all")
    one.speculation.follow(DrafterPool({"small": "draft:1", "other": "draft:2"}, (), core_share=0.0))
    sequence = start(one, "s", length=40, generated=1)
    for number in range(40):
        one.speculation.jobs([sequence], [4], Policy())
        one.speculation._clock.now_s += 0.012
        guessed = {"small": 0.9, "other": 0.9} if number == 0 else {"small": 0.9}
        one.speculation.receive(answer(len(sequence.tokens), request_id="s", models_s=0.011, confidence=guessed))
        sequence.kv.tokens += [7]
        if number == 0:
            before = one.draft_costs.read_s(1000)
    assert one.draft_costs.read_s(1000) == before


def test_rounds_that_end_without_the_drafts_show_that_the_wait_is_too_short():
    """Prompts are read meanwhile: waits must grow all the same, however long a node may take to answer."""
    one = parts(pages=256, clock=(clock := HandClock()), routing="all")
    one.speculation.follow(DrafterPool({"small": "draft:1", "other": "draft:2"}, (), core_share=0.0))
    sequence = start(one, "s", length=200, generated=1)
    for _ in range(FIRST_WAITS + 4):
        one.speculation.jobs([sequence], [4], Policy(draft_wait_s=60.0))
        waited_s = sequence.due_s - clock.now_s
        clock.now_s = sequence.due_s
        nothing = {"tokens": (), "parents": (), "survival": (), "proposers": (), "confidence": {}}
        one.speculation.receive(answer(len(sequence.tokens), request_id="s", **nothing))
        sequence.kv.tokens += [7]
    assert waited_s > 20 * MIN_WAIT_S


def test_a_round_in_which_drafters_catch_up_shows_what_drafts_take_at_most():
    pool, clock = DrafterPool({"small": "draft:1"}, ()), HandClock()
    one = parts(overlap="none", pool=pool, clock=clock)
    sequence = start(one, "r", max_tokens=90, generated=1)

    def round_of(took_s: float, brings: int) -> None:
        one.speculation.jobs([sequence], [2], Policy())
        clock.now_s += took_s
        one.speculation.receive(message(base=len(sequence.tokens), models_s=0.9 * took_s, confidence={"small": 0.9}))
        sequence.kv.tokens += [7] * brings

    for _ in range(12):
        round_of(0.010, brings=2)
    usual_s = one.draft_costs.seconds(1, 2)
    sequence.kv.tokens += [7] * ROUND_TOKENS  # without drafts
    round_of(0.030, brings=2)
    assert one.draft_costs.seconds(1, 2) == usual_s
    round_of(0.030, brings=2)
    assert one.draft_costs.seconds(1, 2) > 1.1 * usual_s


def test_reading_is_no_wrong_draft_to_routing():
    one, _ = with_much_to_read()
    one.speculation.follow(DrafterPool({"small": "draft:1", "other": "draft:1"}, ()))
    sequence = start(one, "reader", length=200, generated=1)
    for _ in range(3):
        one.speculation.jobs([sequence], [4], Policy(), worth_s=0.050)
        sequence.kv.tokens += [7]
    assert not one.speculation.router.asked_rounds


def test_a_probe_that_is_not_sent_is_no_wrong_draft_to_routing():
    one = parts(pool=DrafterPool({"small": "draft:1", "other": "draft:1"}, ()))
    sequence = start(one, "r")
    sent = 0
    for _ in range(3):
        sent += len(one.speculation.jobs([sequence], [0], Policy(), [True]))
        sequence.kv.tokens += [7]
    assert sent == 1 == max(one.speculation.router.asked_rounds.values())


def test_a_wait_that_is_too_short_is_found_so():
    """Drafters that take longer than the first wait answer when the next job is under way already."""
    one = parts(clock=(clock := HandClock()))
    sequence = start(one, "r")
    for _ in range(4):
        base = len(sequence.tokens)
        one.speculation.jobs([sequence], [3], Policy())
        waited_s = sequence.due_s - clock.now_s
        clock.now_s += waited_s + 0.001
        sequence.tokens.append(9)  # it went on without
        one.speculation.jobs([sequence], [3], Policy())
        one.speculation.receive(message(base=base))
    assert sequence.due_s - clock.now_s > 3.0 * MIN_WAIT_S
    one.speculation.remove("r")
    before = one.draft_costs.seconds(1, 3)
    one.speculation.receive(message(base=base))
    assert one.draft_costs.seconds(1, 3) == before


class Ticking(Still):
    """A clock by which only decisions take time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += 0.25
        return self.now_s


def test_the_time_to_decide_lengths_is_part_of_the_draft_cost():
    for clock, thinking_s in ((Still(), 0.0), (Ticking(), 0.25)):
        one = parts(costs=StepCosts({1: 1.0, 64: 1.1}), pool=DrafterPool({}, ("lookup",)), clock=clock)
        (job,) = one.speculation.request_drafts([start(one, "r")], Policy())
        for _ in range(9):
            one.speculation.jobs([one.sequences["r"]], [job.max_draft_tokens], Policy())
            one.speculation.receive(message())
        assert one.draft_costs.seconds(1, job.max_draft_tokens) == pytest.approx(thinking_s, abs=0.01)


def test_a_round_with_skipped_models_teaches_nothing_of_their_costs():
    """A model-free draft takes no time; counted as a model's it would make drafting look free."""
    one = parts(clock=(clock := HandClock()))
    sequence = start(one, "r", length=200)
    for _ in range(10):
        one.draft_costs.update(1, 3, 0.010)
    before = one.draft_costs.seconds(1, 3), one.draft_costs.read_s(200)
    one.speculation.jobs([sequence], [3], Policy())
    one.speculation.receive(message(base=200, skipped=("small",)))
    assert (one.draft_costs.seconds(1, 3), one.draft_costs.read_s(200)) == before
    sequence.tree = None
    one.speculation.jobs([sequence], [3], Policy())
    clock.now_s += 0.03
    one.speculation.receive(answer(200))
    assert one.draft_costs.read_s(200) == pytest.approx(0.02), "a model that was not run had not read it"
    sequence.tree = None
    one.speculation.jobs([sequence], [3], Policy())
    clock.now_s += 0.03
    one.speculation.receive(answer(200))
    assert one.draft_costs.read_s(200) == pytest.approx(0.02), "a job sent twice tells only what is new"
    assert one.draft_costs.seconds(1, 3) != before[0]


def test_no_model_gets_a_job_in_a_model_free_round():
    one = parts(pool=DrafterPool({"small": "draft:1"}, ("lookup",), alone="verify:1"))
    sequence = start(one, "r")
    (job,) = one.speculation.jobs([sequence], [3], Policy(), is_model_free=True)
    assert job.drafters == ("lookup",) and job.to == job.fuser == "verify:1"
    one.speculation.receive(message())
    assert one.draft_costs.seconds(1, 3) == DraftCosts().seconds(1, 3), "what that took is no model's price"
    assert one.lengths.modes.model_free.costs.seconds(1, 3) != DraftCosts().seconds(1, 3)
    before = one.lengths.modes.with_models.of(sequence.record).survival(1)
    one.speculation.record_verdicts([(sequence, [1, 7])])
    assert one.lengths.modes.with_models.of(sequence.record).survival(1) == before


def test_rounds_that_asked_models_are_counted():
    one = parts()
    sequence = start(one, "r", generated=0)
    one.speculation.record_verdicts([(sequence, [2])])
    assert (one.stats.later_rounds, one.stats.model_rounds) == (0, 0), "the first token has no draft"
    sequence.kv.tokens.append(2)
    for arrives, is_model_free, counts in (
        ({}, False, (1, 1)),
        (None, False, (2, 2)),
        ({}, True, (3, 2)),
        ({"skipped": ("small",)}, False, (4, 2)),
    ):
        one.speculation.jobs([sequence], [3], Policy(), is_model_free=is_model_free)
        if arrives is not None:
            one.speculation.receive(message(base=6, **arrives))
        one.speculation.record_verdicts([(sequence, [1, 7])])
        assert (one.stats.later_rounds, one.stats.model_rounds) == counts
    one.speculation.record_verdicts([(sequence, [1])])
    report = one.stats.report(one.sequences.all())
    assert (report["later_rounds"], report["model_rounds"]) == (5, 2), "no drafter was asked for the last one"


def test_the_first_waits_grow_until_it_is_known_what_drafts_take():
    """The first drafts of slow drafters would always be late, and late drafts teach nothing."""
    clock = HandClock()
    one = parts(pool=DrafterPool({"small": "draft:1"}, (), 0.0), clock=clock)
    sequence = start(one, "r", max_tokens=50)

    def wait_s() -> float:
        one.speculation.jobs([sequence], [4], Policy())
        return sequence.due_s - clock.time()

    first = [wait_s() for _ in range(FIRST_WAITS)]
    assert first == pytest.approx([min(0.25, MIN_WAIT_S * factor) for factor in (3, 6, 12, 24)], abs=1e-6)
    assert wait_s() == pytest.approx(MIN_WAIT_S), "none of them came: it may never answer"
    for _ in range(20):
        one.draft_costs.update(1, 4, 0.02)
    assert wait_s() == pytest.approx(0.06, rel=0.1)


def test_group_split_uses_cost_at_requested_length():
    one = parts(
        costs=StepCosts({1: 0.010, 64: 0.640}), overlap="halves", pool=DrafterPool({"small": "draft:1"}, (), 0.0)
    )
    for depth in (1, 2):
        for _ in range(20):
            one.draft_costs.update(4, depth, 0.0008 * depth)  # at length 8 a tenth of a step
    sequences = [start(one, name) for name in "abcd"]
    one.speculation.jobs(sequences, [2] * 4, Policy())
    one.speculation.request_drafts(sequences, Policy())
    assert one.speculation.is_together, "drafting takes a twenty-fifth of a step: too little to hide"
    one.speculation.jobs(sequences, [8] * 4, Policy())
    one.speculation.request_drafts(sequences, Policy())
    assert not one.speculation.is_together


def test_halves_that_draft_nothing_go_together_again():
    one = parts(
        costs=StepCosts({1: 0.010, 64: 0.640}), overlap="halves", pool=DrafterPool({"small": "draft:1"}, (), 0.0)
    )
    for depth in (1, 2):
        for _ in range(20):
            one.draft_costs.update(4, depth, 0.0008 * depth)
    sequences = [start(one, name) for name in "abcd"]
    for sequence in sequences:
        for _ in range(80):
            one.lengths.modes.with_models.of(sequence.record).update(8, 0)
    one.speculation.jobs(sequences, [8] * 4, Policy())
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
    one.speculation.receive(
        message(tokens=(1, 9, 2), parents=(0, 0, 1), survival=(0.5, 0.3, 0.2), proposers=(("a",),) * 3)
    )
    assert sequence.tree == Tree([1, 2], [0, 1], [1.0, 1.0], [("a",), ("a",)])
    assert one.speculation.request_drafts([sequence], Policy(max_draft_tokens=0)) == []


def test_what_a_tree_costs_the_host_is_part_of_the_draft_cost():
    one = parts(costs=StepCosts({1: 1.0, 64: 1.1}), pool=DrafterPool({}, ("lookup",)), clock=Still())
    start(one, "r")
    one.speculation.record_host(1, 0, 0.1)
    for _ in range(2):
        one.speculation.record_host(1, 1, 0.35)
    for _ in range(9):
        one.speculation.jobs([one.sequences["r"]], [3], Policy())
        one.speculation.receive(message())
    assert one.draft_costs.seconds(1, 3) == pytest.approx(0.25, abs=0.01)


def test_what_one_split_taught_is_not_charged_to_another():
    one = parts(clock=(clock := HandClock()), plan="faser")
    sequence = start(one, "r")
    pending = one.speculation.pending
    guessing = one.lengths.modes.guessing

    def answer(guessed: int, models_s: float) -> None:
        clock.now_s += models_s + 0.001
        one.speculation.receive(message(base=len(sequence.tokens), models_s=models_s, guessed=guessed))

    for _ in range(20):
        one.speculation.jobs([sequence], [4], Policy())
        answer(2, 0.02)
    assert guessing.seconds(1, 2) == pytest.approx(0.02, rel=0.1), "two of the four were guessed ahead"
    assert pending.guess_error.value is not None and pending.guess_error.value < 0.2
    pending.use(1)
    one.speculation.jobs([sequence], [4], Policy())  # asked for under split 0
    answer(2, 0.9)
    assert guessing.seconds(1, 2) == pytest.approx(0.02, rel=0.1)
    assert one.draft_costs.seconds(1, 4) == one.draft_costs.at(0).seconds(1, 4) < 0.1


def test_the_controllers_split_is_the_machines_and_that_of_the_costs():
    splits = Chosen()
    strategies = DraftStrategies(
        planner := JointController(FixedLength(2), splits.all), Router(routing(Settings())), planner, splits=splits
    )
    one = parts(costs=StepCosts({1: 0.001, 64: 0.064}))
    measured = fakes.measured(one.runner, StepCosts({1: 0.001, 64: 0.064}))
    speculation = Speculation(measured, one.sequences, one.stats, strategies, "mailbox")
    speculation.follow(one.speculation.pool)
    speculation.expect(1, Interference(0.25, 1.0))  # at once everything takes a quarter: it must be chosen
    sequences = [start(one, f"r{i}") for i in range(4)]
    for _ in range(FIRST + AFTER + 1):
        speculation.request_drafts(sequences, Policy())
    assert splits.used == [1] and speculation.split == splits.all[1]
    assert measured.costs.seconds(8) == pytest.approx(0.25 * measured.costs.at(0).seconds(8))
    assert planner.modes.guessing.split == planner.modes.with_models.costs.split == 1


class Chosen:
    """Splits that remember which are used."""

    all = in_turn_and_at_once(0, [1])

    def __init__(self) -> None:
        self.used: list[int] = []

    def use(self, number: int) -> None:
        self.used.append(number)
