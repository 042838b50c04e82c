"""Test the choice between models and model-free drafters alone: the mode of the higher gain, by its own costs."""

from dataclasses import replace

import pytest

import app.speculation.planner as module
from app.engine.step_costs import StepCosts
from app.speculation.length_policy import DraftBatch
from app.speculation.marginal import Candidate
from app.speculation.planner import (
    ASK_AFTER_STEPS,
    EARLY_TRIAL_SHARE,
    FIRST_FULL_ASKS,
    FIRST_TRIAL_STEPS,
    FULL_AFTER_ASKS,
    LATEST_ASK_STEPS,
    QUIET_AFTER_STEPS,
    QUIET_STEPS,
    TRIAL_ROUNDS,
    TRIAL_SHARE,
    TRIAL_TOKENS,
    LengthController,
)
from app.state import Tree
from tests import fakes

COSTS = StepCosts({1: 0.050, 2: 0.051, 64: 0.100})
RECORD = fakes.record([1, 2, 3], request_id="r")
RIGHT, WRONG = [7, 8, 9], [1, 1, 1]


def tree(*proposers: str) -> Tree:
    """Make a chain of 7, 8, 9 that all of these proposed."""
    return Tree([7, 8, 9], [0, 1, 2], [0.9, 0.8, 0.7], [proposers] * 3)


@pytest.fixture
def lengths() -> LengthController:
    found = LengthController()
    for _ in range(20):
        found.modes.with_models.costs.update(1, 4, 0.020)
        found.modes.model_free.costs.update(1, 4, 0.0005)
    return found


def batch_of(full: list[Candidate], model_free: list[Candidate] | None = None, costs: StepCosts = COSTS) -> DraftBatch:
    return DraftBatch(full, model_free, has_models=True, lengths={}, costs=costs, now_s=0.0)


def decide(lengths: LengthController, costs: StepCosts = COSTS) -> bool | None:
    """Tell whether model-free drafters alone are asked; None where none is."""
    full, model_free = ([Candidate(way.of(RECORD), 4)] for way in (lengths.modes.with_models, lengths.modes.model_free))
    found = lengths.decide(batch_of(full, model_free, costs))
    return found.is_model_free if any(found.depths) else None


def test_model_free_drafters_that_do_as_well_are_asked_alone(lengths):
    for _ in range(30):
        lengths.modes.update([(RECORD, tree("small", "lookup"), RIGHT, False)], ("lookup",))
    assert [decide(lengths) for _ in range(FIRST_FULL_ASKS)] == [False] * FIRST_FULL_ASKS
    assert [decide(lengths) for _ in range(FULL_AFTER_ASKS)] == [True] * FULL_AFTER_ASKS
    assert decide(lengths) is False, "to see what they would be worth"
    assert [decide(lengths) for _ in range(2 * FULL_AFTER_ASKS)] == [True] * (2 * FULL_AFTER_ASKS)
    assert decide(lengths) is False, "after twice as long, since they gained nothing"
    waits = []
    while len(waits) < 3:
        waits.append(next(i for i in range(1000) if decide(lengths) is False))
    assert waits == [ASK_AFTER_STEPS, 0, ASK_AFTER_STEPS], "a trial has two rounds"
    lengths.modes.with_models.costs.update(1, 4, 0.0001)  # far less than before: it starts afresh
    for _ in range(30):
        lengths.modes.update([(RECORD, tree("small"), RIGHT, False)], ("lookup",))
    assert decide(lengths) is False
    for _ in range(30):
        lengths.modes.with_models.costs.update(1, 4, 0.020)
        lengths.modes.update([(RECORD, tree("small", "lookup"), RIGHT, False)], ("lookup",))
    assert [decide(lengths) for _ in range(FULL_AFTER_ASKS)] == [True] * FULL_AFTER_ASKS
    assert decide(lengths) is False, "as soon as at first, since they gained meanwhile"


def test_prompts_cost_nothing_where_drafts_are_not_waited_for(lengths):
    """Without models the verifier drafts by itself, and does not read prompts meanwhile."""
    for _ in range(30):
        lengths.modes.with_models.of(RECORD).update(4, 1)
    full = [Candidate(lengths.modes.with_models.of(RECORD), 4)]
    for has_models in (True, False):
        batch = DraftBatch(
            full, None, has_models=has_models, lengths={RECORD.id: 9}, costs=COSTS, now_s=0.0, prompts_s=9.0
        )
        assert any(lengths.plan(batch).depths) != has_models


def test_models_that_see_more_are_asked(lengths):
    for _ in range(30):
        lengths.modes.update([(RECORD, tree("small"), RIGHT, False)], ("lookup",))
    assert [decide(lengths) for _ in range(50)] == [False] * 50


@pytest.mark.parametrize(("together", "drafts"), [(1.0, True), (2.0, False)])
def test_a_half_drafts_only_for_more_than_both_halves_in_one_step_would_have(lengths, together, drafts):
    """Its drafts hide behind the other half's step, which alone would have gone on with it."""
    for i in range(30):
        lengths.modes.with_models.of(RECORD).update(4, i % 2)
    full = [Candidate(lengths.modes.with_models.of(RECORD), 4)]
    flat = StepCosts({1: 0.050, 64: 0.051})
    batch = DraftBatch(
        full, None, has_models=True, lengths={}, costs=flat, now_s=0.0, busy_s=0.050, together=together
    )  # fmt: skip
    assert any(lengths.decide(batch).depths) == drafts


def test_a_model_free_round_shows_nothing_of_models(lengths):
    before = lengths.modes.with_models.of(RECORD).survival(3)
    lengths.modes.update([(RECORD, tree("lookup"), WRONG, True)], ("lookup",))
    assert lengths.modes.with_models.of(RECORD).survival(3) == before
    assert lengths.modes.model_free.of(RECORD).survival(1) < LengthController().modes.model_free.of(RECORD).survival(1)


def test_silent_model_free_drafters_count_as_wrong(lengths):
    lengths.modes.update([(RECORD, tree("small"), RIGHT, False)], ("lookup",))
    assert lengths.modes.model_free.of(RECORD).survival(1) < LengthController().modes.model_free.of(RECORD).survival(1)


def test_the_model_free_part_of_a_tree_is_a_tree_of_its_own():
    whole = Tree([5, 6, 7, 8], [0, 0, 1, 2], [0.5, 0.4, 0.3, 0.2], [("a",), ("b", "a"), ("b",), ("b",)])
    own = whole.of({"b"})
    assert (own.tokens, own.parents) == ([6, 8], [0, 1]), "7 hangs below a token that b did not propose"


def test_no_draft_is_asked_where_none_pays_nor_decided_at_each_step(lengths, monkeypatch):
    steep = StepCosts({1: 0.001, 2: 10.0})
    looks = []
    real = module.draft_lengths
    monkeypatch.setattr(module, "draft_lengths", lambda *words, **rest: looks.append(1) or real(*words, **rest))

    def step(records: list) -> None:
        if not lengths.is_quiet(records):
            assert decide(lengths, steep) is None

    for _ in range(QUIET_AFTER_STEPS + 3 * QUIET_STEPS):
        step([RECORD])
    assert len(looks) == 2 * (QUIET_AFTER_STEPS + 3)
    assert lengths.modes.with_models.of(RECORD).silent_rounds == QUIET_AFTER_STEPS + 3 * QUIET_STEPS, (
        "none was forgotten"
    )
    assert lengths.modes.model_free.of(RECORD).silent_rounds == QUIET_AFTER_STEPS + 3 * QUIET_STEPS
    step([RECORD, fakes.record([1], request_id="s")])
    assert len(looks) == 2 * (QUIET_AFTER_STEPS + 4), "at once when a sequence comes"


def test_a_forced_round_of_models_asks_for_as_much_as_pays(lengths):
    """Model-free drafters alone would gain more."""
    for _ in range(30):
        lengths.modes.update([(RECORD, tree("small", "lookup"), RIGHT, False)], ("lookup",))
    assert [decide(lengths) for _ in range(FIRST_FULL_ASKS)] == [False] * FIRST_FULL_ASKS
    assert [decide(lengths, StepCosts({1: 0.050, 2: 10.0})) for _ in range(ASK_AFTER_STEPS - 1)].count(None) == (
        ASK_AFTER_STEPS - 1
    )
    assert decide(lengths) is True
    full, model_free = ([Candidate(way.of(RECORD), 4)] for way in (lengths.modes.with_models, lengths.modes.model_free))
    found = lengths.decide(batch_of(full, model_free))
    assert not found.is_model_free and found.depths[0] > 1


def test_what_looks_dear_is_tried_with_the_whole_batch():
    """What a batch's drafts cost shows in no other one's; trials come ever less often while they teach nothing."""
    lengths = LengthController()
    lengths.modes.with_models.costs.update(2, 4, 0.200)
    records = [RECORD, fakes.record([1, 2, 3], request_id="s")]
    flat = StepCosts({1: 0.050, 64: 0.051})

    def step() -> list[int]:
        full = [Candidate(lengths.modes.with_models.of(r), 8) for r in records]
        return lengths.decide(batch_of(full, costs=flat)).depths

    asked = [step() for _ in range(400)]
    trials = [i for i, depths in enumerate(asked) if any(depths)]
    least_steps = TRIAL_ROUNDS * 0.200 / flat.seconds(2) / EARLY_TRIAL_SHARE
    assert trials[0] == int(least_steps) > FIRST_TRIAL_STEPS and asked[trials[0]] == [TRIAL_TOKENS] * 2
    assert trials[1] == trials[0] + 1, "in the first of a trial's rounds drafters catch up"
    assert trials[2] - trials[1] >= 2 * FIRST_TRIAL_STEPS + 1
    lengths.modes.with_models.costs.update(2, 4, 0.004)
    assert min(step()) > 0


def test_a_whole_batch_that_looks_dear_is_tried_though_a_part_of_it_drafts(lengths):
    """Drafts for one of two show nothing of what drafts for both take: a wrong cost would stay."""
    lengths.modes.with_models.costs.update(2, 4, 0.200)
    records = [RECORD, fakes.record([1, 2, 3], request_id="s")]
    flat = StepCosts({1: 0.050, 64: 0.051})
    for record in records:
        for _ in range(20):
            lengths.modes.with_models.of(record).update(4, 4)

    def step() -> list[int]:
        full = [Candidate(lengths.modes.with_models.of(r), 8) for r in records]
        return lengths.decide(batch_of(full, costs=flat)).depths

    asked = [step() for _ in range(200)]
    assert sum(depths.count(0) == 1 for depths in asked) > 150, "one of the two drafts nearly always"
    assert any(min(depths) > 0 for depths in asked), "and both in a trial"


@pytest.mark.parametrize("accepted, least_steps", [(0.1, 160), (4.0, 800)], ids=["little", "much"])
def test_models_are_tried_the_later_the_more_is_gained_without_them(accepted, least_steps):
    """Eight steps go by in a trial of models, which look dear; the others draft meanwhile."""
    lengths, flat = LengthController(), StepCosts({1: 0.050, 64: 0.0505})
    lengths.modes.with_models.costs.update(1, TRIAL_TOKENS, 4 * flat.seconds(1))
    lengths.modes.model_free.costs.update(1, TRIAL_TOKENS, 0.0)
    for i in range(60):
        lengths.modes.model_free.of(RECORD).update(4, int(accepted) or int(i % 10 == 0))
    asked = [decide(lengths, flat) for _ in range(least_steps + 2)]
    assert asked.count(False) == TRIAL_ROUNDS and asked.index(False) == pytest.approx(least_steps, abs=1)
    assert asked.count(True) > least_steps // 2


def test_a_trial_that_would_not_pay_at_any_price_leaves_drafting_to_others(lengths):
    for i in range(120):
        lengths.modes.with_models.of(RECORD).update(4, int(i % 100 == 0))
        lengths.modes.model_free.of(RECORD).update(4, 4)
    asked = [decide(lengths) for _ in range(4 * ASK_AFTER_STEPS)]
    assert asked == [True] * (4 * ASK_AFTER_STEPS)


def test_a_trial_waits_for_drafts_that_look_dear():
    lengths, flat = LengthController(), StepCosts({1: 0.050, 64: 0.0505})
    lengths.modes.with_models.costs.update(1, TRIAL_TOKENS, 0.200)
    for _ in range(60):
        lengths.modes.with_models.of(RECORD).update(8, 8)
    full = [Candidate(lengths.modes.with_models.of(RECORD), 1)]
    found = next(found for _ in range(200) if any((found := lengths.decide(batch_of(full, costs=flat))).depths))
    assert found.worth_s == pytest.approx(2.0 * lengths.modes.with_models.costs.seconds(1, 1))


def test_a_trial_asks_for_what_pays_at_no_price():
    """Before any draft a hop is taken for a millisecond, a third of this step, which is more than drafts bring."""
    lengths, quick = LengthController(), StepCosts({1: 0.0027, 2: 0.0029, 4: 0.0034, 64: 0.020})
    for i in range(60):
        for way in (lengths.modes.with_models, lengths.modes.model_free):
            way.of(RECORD).update(1, int(i % 4 == 0))
    asked = [decide(lengths, quick) for _ in range(2 * FIRST_TRIAL_STEPS)]
    assert asked[:FIRST_TRIAL_STEPS] == [None] * FIRST_TRIAL_STEPS
    assert any(one is not None for one in asked)


def test_what_drafters_that_run_ahead_gain_is_not_judged_by_what_drafts_took(lengths):
    """A round after a silent one waits for all of its draft; only those after it find it made."""
    costs = StepCosts({1: 0.050, 64: 0.0505})
    for _ in range(30):
        lengths.modes.with_models.costs.update(1, 1, 0.200)
        lengths.modes.update([(RECORD, tree("small"), RIGHT, False)], ())
    full = [Candidate(lengths.modes.with_models.of(RECORD), 4)]

    def asked(gain: float, model_free: list[Candidate] | None = None) -> tuple[list[int], bool]:
        batch = replace(batch_of(full, model_free, costs), ahead=lambda: (2, gain))
        found = lengths.decide(batch)
        return found.depths, found.is_model_free

    assert asked(1.5) == ([2], False)
    assert asked(1.03) == ([2], False), "enough to go on"
    assert asked(1.01) == ([0], False), "an estimate"
    assert asked(1.03) == ([0], False), "not enough to begin"
    for _ in range(30):
        lengths.modes.model_free.of(RECORD).update(4, 4)
    tables = [Candidate(lengths.modes.model_free.of(RECORD), 4)]
    asked(1.5, tables)
    lengths._model_free_rounds = 0  # models have been tried
    assert asked(1.5, tables) == ([4], True), "model-free drafters gain more"
    assert asked(9.0, tables) == ([2], False)


def test_drafts_that_gain_little_go_on_and_do_not_begin(lengths):
    """Their gain is 1.03 of plain decoding: less than drafting begins for, and enough for it not to end."""
    for _ in range(60):
        lengths.modes.with_models.of(RECORD).update(4, 1)
    full = [Candidate(lengths.modes.with_models.of(RECORD), 1)]
    (chance,) = full[0].expectation.survival(1)

    def asked(gain: float) -> list[int]:
        """Decide where one token costs so much to verify that the best draft has this gain."""
        draft_s = lengths.modes.with_models.costs.seconds(1, 1)
        costs = StepCosts({1: 0.050, 2: 0.050 * (1.0 + chance) / gain - draft_s, 64: 9.0})
        return lengths.decide(batch_of(full, None, costs)).depths

    assert asked(1.2) == [1] and asked(1.03) == [1] and asked(1.0) == [0]
    assert asked(1.03) == [0] and asked(1.2) == [1]
    # A silent sequence counts for 5 % less: 1.06 is 1.03 then, enough to go on.
    assert asked(1.06) == [1] and asked(1.0) == [0] and asked(1.06) == [0]


@pytest.mark.parametrize("read_s", [0.0, 0.100])
def test_trials_of_models_take_a_small_part_of_the_time(read_s):
    """Drafts are right and take too long here; what a trial takes is the draft and the reading before it."""
    lengths, steps, step_s, draft_s = LengthController(), 6000, COSTS.seconds(1), 0.250
    lengths.modes.with_models.costs.update(1, TRIAL_TOKENS, draft_s)
    for _ in range(30):
        lengths.modes.update([(RECORD, tree("small"), RIGHT, False)], ())
    candidate = Candidate(lengths.modes.with_models.of(RECORD), TRIAL_TOKENS, read_s)
    asked = [not lengths.is_quiet([RECORD]) and any(lengths.decide(batch_of([candidate])).depths) for _ in range(steps)]
    late = asked[steps // 3 :]  # the first ones come sooner, to find what pays
    drafts, readings = sum(late) - TRIAL_ROUNDS, sum(late) / TRIAL_ROUNDS - 1
    assert 0 < drafts * draft_s + readings * read_s <= TRIAL_SHARE * len(late) * step_s


def test_a_wrong_draft_cost_of_models_is_corrected(lengths):
    """A frozen process makes drafting look dear; only drafting shows better, even where model-free drafters pay."""
    for _ in range(30):
        lengths.modes.update([(RECORD, tree("small", "lookup"), RIGHT, False)], ("lookup",))
        lengths.modes.with_models.costs.update(1, 4, 60.0)
    asked = [decide(lengths) for _ in range(LATEST_ASK_STEPS + FIRST_FULL_ASKS + 2)]
    assert asked.count(False) == TRIAL_ROUNDS and True in asked
    silent = LengthController()
    silent.modes.with_models.costs.update(1, 4, 60.0)
    for _ in range(30):
        silent.modes.update([(RECORD, tree("small"), WRONG, False)], ("lookup",))
    asked = []
    while len(asked) < LATEST_ASK_STEPS + ASK_AFTER_STEPS:
        asked.append(None if silent.is_quiet([RECORD]) else decide(silent))
    assert False in asked, "nor where nothing pays"
