"""Test the joint choice of lengths, chunk and split: it follows costs and load, and does not flap."""

import pytest

from app.engine.step_costs import StepCosts
from app.placement.splits import Split
from app.speculation.baselines import FixedLength
from app.speculation.faser import FaserLength
from app.speculation.joint import AFTER, FIRST, BatchLoad, JointController, JointPlan, Profile, joint_plans
from app.speculation.length_protocol import DraftBatch
from tests.app.speculation.candidates import chancy, drafter

SPLITS = (Split(0, False), Split(16, True), Split(64, True))
IN_TURN, HALVES = (0, False), {(1, True), (2, True)}


ROW_S = 0.001


def profile(
    guess_s: float, steps_slower: float, drafts_slower: float, base_s: float = ROW_S, row_s: float = ROW_S
) -> Profile:
    """Make a profile: a step of `base_s` and `row_s` a row more, `guess_s` a guess; under split 1 both so much slower.

    Split 2 gives drafting more.
    """
    steps, guesses = StepCosts({1: base_s, 1024: base_s + 1023 * row_s}), drafter(guess_s)
    for split, factor in ((1, 1.0), (2, 1.5)):
        steps.expect(split, 1.0 + factor * (steps_slower - 1.0))
        guesses.expect(split, drafts_slower / factor)
    return Profile(SPLITS, steps, guesses)


def best(found: Profile, sequences: int, chance: float = 0.6, length: int = 1) -> JointPlan:
    load = BatchLoad({f"r{i}": chancy(chance) for i in range(sequences)}, sequences)
    return joint_plans(found, load, FixedLength(length))[0]


def test_both_sides_work_at_once_only_where_the_hidden_drafting_exceeds_the_interference() -> None:
    assert best(profile(0.005, 1.05, 1.1), 16).way in HALVES, "a batch bound by computing: half takes half"
    assert best(profile(0.005, 1.6, 1.1), 16).way == IN_TURN, "steps get slower by more than drafting takes"
    assert best(profile(0.0001, 1.05, 1.1), 16).way == IN_TURN, "nothing to hide"
    flat = profile(0.005, 1.05, 1.1, base_s=0.02, row_s=0.0)
    assert not best(flat, 16).in_halves, "half a batch takes as long as a whole one"


def test_one_sure_sequence_is_drafted_ahead_by_a_chunk_that_a_step_hides() -> None:
    plan = best(profile(0.004, 1.02, 1.5, base_s=0.02, row_s=0.0001), 1, chance=0.97, length=8)
    assert plan.split and not plan.in_halves and plan.chunk == max(plan.lengths) and 1 <= plan.chunk < 8
    doubtful = best(profile(0.004, 1.3, 1.5, base_s=0.02, row_s=0.0001), 1, chance=0.3)
    assert doubtful.way == IN_TURN and doubtful.chunk is None, "what is drafted ahead would be dropped"


def test_a_slow_drafter_is_given_the_larger_part() -> None:
    fast, slow = best(profile(0.004, 1.05, 1.1), 16), best(profile(0.02, 1.05, 1.1), 16)
    assert fast.way == (1, True) and slow.way == (2, True)


def test_lengths_are_searched_for_under_each_split() -> None:
    load = BatchLoad({f"r{i}": chancy(0.7) for i in range(4)}, 4)
    plans = joint_plans(profile(0.001, 1.1, 8.0, base_s=0.02, row_s=0.0001), load, FaserLength())
    assert [plan.pace for plan in plans] == sorted((plan.pace for plan in plans), reverse=True)
    by_way = {plan.way: plan for plan in plans}
    assert max(by_way[0, False].lengths) > max(by_way[1, False].lengths), "where drafting is slow it is shorter"


def test_a_half_of_the_sequences_speaks_for_all() -> None:
    whole = BatchLoad({f"r{i}": chancy(0.6) for i in range(8)}, 8)
    half = BatchLoad({f"r{i}": chancy(0.6) for i in range(4)}, 8)
    paces = [
        {plan.way: plan.pace for plan in joint_plans(profile(0.004, 1.1, 1.1), load, FixedLength(4))}
        for load in (whole, half)
    ]
    assert paces[0].keys() == paces[1].keys()
    assert all(paces[0][way] == pytest.approx(paces[1][way], rel=1e-6) for way in paces[0])


class Steps:
    """A controller and the loads that it meets."""

    def __init__(self, found: Profile) -> None:
        self.controller = JointController(FixedLength(1), found.splits)
        self.costs = found.steps
        self.controller.modes.with_models.costs.__dict__.update(found.guesses.__dict__)
        self._tokens = 10

    def decide(self, sequences: int, times: int = 1) -> list[tuple[int, bool]]:
        """Return the ways that are chosen."""
        found = []
        for _ in range(times):
            self._tokens += 1
            candidates = [chancy(0.6) for _ in range(sequences)]
            lengths = {f"r{i}": self._tokens for i in range(sequences)}
            batch = DraftBatch(
                candidates, None, has_models=True, lengths=lengths, costs=self.costs, now_s=0.0, load=sequences
            )
            decision = self.controller.plan(batch)
            found.append(self.controller._plan.way)
            assert decision.split == found[-1][0]
        return found


def test_the_way_follows_the_load_and_does_not_flap() -> None:
    steps = Steps(profile(0.005, 1.05, 1.1))
    ways = steps.decide(16, FIRST + AFTER)
    assert set(ways[:-1]) == {IN_TURN} and ways[-1] in HALVES, "it takes costs to decide, and then a few decisions"
    assert not steps.controller.goes_together(steps.costs, 16, lambda n: 0.0)
    few = steps.decide(2, AFTER)
    assert few[0] in HALVES and few[-1] not in HALVES, "two sequences do not fill halves"
    assert steps.controller.goes_together(steps.costs, 2, lambda n: 0.0)
    steps.decide(16, AFTER)
    swinging = [steps.decide(16 if i % 2 else 2)[0] for i in range(40)]
    assert len(set(swinging)) == 1, "a load that swings faster than it is decided changes nothing"
