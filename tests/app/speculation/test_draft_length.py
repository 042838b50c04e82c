"""Test the choice between models, model-free drafters alone, and no drafts."""

from dataclasses import replace
from weakref import WeakKeyDictionary

import pytest

from app.engine.step_costs import StepCosts
from app.messages import DraftReport
from app.speculation.draft_length import TRIAL_TOKENS, LengthController, trial_lengths
from app.speculation.guard import TRIAL_ROUNDS, Way
from app.speculation.length_protocol import DraftBatch
from app.speculation.marginal import Candidate
from app.state import Tree
from tests import fakes

COSTS = StepCosts({1: 0.050, 2: 0.051, 64: 0.100})
RECORD = fakes.record([1, 2, 3], request_id="r")
RIGHT, WRONG = [7, 8, 9], [1, 1, 1]


def tree(*proposers: str) -> Tree:
    """Make a chain of 7, 8, 9 that all of these proposed."""
    return Tree([7, 8, 9], [0, 1, 2], [0.9, 0.8, 0.7], [proposers] * 3)


def teach(lengths: LengthController, seconds: float) -> None:
    """Let drafts of four tokens have taken so long."""
    for _ in range(20):
        lengths.modes.with_models.costs.update(1, 4, seconds, [DraftReport(guess_s=seconds, guessed=4)])


@pytest.fixture
def lengths() -> LengthController:
    found = LengthController()
    teach(found, 0.020)
    for _ in range(20):
        found.modes.model_free.costs.update(1, 0.0005)
    return found


def batch_of(full: list[Candidate], model_free: list[Candidate] | None = None, costs: StepCosts = COSTS) -> DraftBatch:
    return DraftBatch(full, model_free, has_models=True, lengths={}, costs=costs, now_s=0.0, load=1)


def plan(lengths: LengthController, costs: StepCosts = COSTS, took: float = 1.0) -> Way:
    """Plan a round, and let it take so many times as long as is expected; return its way."""
    full, model_free = ([Candidate(way.of(RECORD), 4)] for way in (lengths.modes.with_models, lengths.modes.model_free))
    found = lengths.plan(batch_of(full, model_free, costs))
    way = Way.PLAIN if not any(found.depths) else Way.MODEL_FREE if found.is_model_free else Way.MODELS
    assert found.price is not None
    expected_s, guard = found.price.round_s(full, found.depths, costs), lengths.modes.guard
    now_s = NOW.get(lengths, 0.0)
    guard.begin(way, ["r"], expected_s, now_s, is_trial=found.is_trial)
    guard.end({"r": 1}, now_s + took * expected_s)
    NOW[lengths] = now_s + took * expected_s
    return way


NOW = WeakKeyDictionary[LengthController, float]()


def test_model_free_drafters_that_do_as_well_are_asked_alone(lengths):
    for _ in range(30):
        lengths.modes.update([(RECORD, tree("small", "lookup"), RIGHT, False)], ("lookup",))
    found = [plan(lengths) for _ in range(1000)]
    assert set(found[:3]) == {Way.MODEL_FREE}
    trials = [i for i, way in enumerate(found) if way is Way.MODELS]
    assert trials[1] == trials[0] + 1 and found[500:].count(Way.MODELS) < 25, "models are tried now and then"


def test_models_that_see_more_are_asked(lengths):
    for _ in range(30):
        lengths.modes.update([(RECORD, tree("small"), RIGHT, False)], ("lookup",))
    assert [plan(lengths) for _ in range(50)] == [Way.MODELS] * 50


def test_a_way_whose_rounds_take_longer_than_expected_is_left_and_tried_again(lengths):
    """The costs do not show it: the host's work beside drafts, say."""
    for _ in range(30):
        lengths.modes.update([(RECORD, tree("small"), RIGHT, False)], ("lookup",))
    found, slow = [], {Way.MODELS: 9.0}
    for _ in range(300):
        took = slow.get(found[-1], 1.0) if found else 1.0
        found.append(plan(lengths, took=took))
    assert found[0] is Way.MODELS and found[10:].count(Way.MODELS) < 30
    found = [plan(lengths) for _ in range(8000)]
    assert found[-50:].count(Way.MODELS) >= 48, "what slowed it down has passed"


def test_model_free_drafters_are_tried_again_though_they_were_wrong(lengths):
    """Nothing else would show that texts have come that they know."""
    for _ in range(60):
        for way in (lengths.modes.with_models, lengths.modes.model_free):
            way.of(RECORD).update(4, 0)
    found = []
    for _ in range(3000):
        found.append(plan(lengths))
        if found[-1] is not Way.PLAIN:
            lengths.modes.update([(RECORD, tree("small", "lookup"), WRONG, found[-1] is Way.MODEL_FREE)], ("lookup",))
    assert 0 < found.count(Way.MODEL_FREE) < 450, "each adds a twentieth to its round"


def test_the_first_drafts_are_those_of_one_sequence():
    """Nothing is known of what reading takes, and all texts are unread."""
    lengths = LengthController()
    full = [Candidate(lengths.modes.with_models.of(RECORD), limit) for limit in (0, 4, 4, 4)]
    flat = StepCosts({1: 0.050, 64: 0.051})
    assert [depth > 0 for depth in lengths.plan(batch_of(full, costs=flat)).depths] == [False, True, False, False]
    teach(lengths, 0.020)
    assert all(lengths.plan(batch_of(full, costs=flat)).depths[1:])


def test_plain_decoding_is_tried_only_where_it_could_be_the_best(lengths):
    for _ in range(30):
        lengths.modes.update([(RECORD, tree("small"), RIGHT, False)], ("lookup",))
    assert {plan(lengths, took=1.3) for _ in range(3000)} == {Way.MODELS}


def test_a_model_free_round_shows_nothing_of_models(lengths):
    before = lengths.modes.with_models.of(RECORD).survival(3)
    lengths.modes.update([(RECORD, tree("lookup"), WRONG, True)], ("lookup",))
    assert lengths.modes.with_models.of(RECORD).survival(3) == before
    assert lengths.modes.model_free.of(RECORD).survival(1) < LengthController().modes.model_free.of(RECORD).survival(1)


def test_silent_model_free_drafters_count_as_wrong(lengths):
    lengths.modes.update([(RECORD, tree("small"), RIGHT, False)], ("lookup",))
    assert lengths.modes.model_free.of(RECORD).survival(1) < LengthController().modes.model_free.of(RECORD).survival(1)


def test_no_draft_is_asked_for_where_none_pays_at_any_price(lengths):
    steep = StepCosts({1: 0.001, 2: 10.0})
    assert {plan(lengths, steep) for _ in range(99)} == {Way.PLAIN}


def test_rows_timed_beside_other_work_are_tried_and_corrected(lengths):
    points = {1: 0.050, 4: 0.200, 64: 0.400}
    rough, sure = StepCosts(points, is_rough=True), StepCosts(points)
    assert {plan(lengths, sure) for _ in range(99)} == {Way.PLAIN}
    assert {plan(lengths, rough) for _ in range(TRIAL_ROUNDS)} == {Way.MODEL_FREE}
    for costs in (rough, sure):
        for _ in range(TRIAL_ROUNDS):
            costs.correct(1 + TRIAL_TOKENS, 0.051)
    assert rough.seconds(3) / rough.seconds(1) < 0.75 * sure.seconds(3) / sure.seconds(1)


def test_a_trial_asks_for_what_pays_at_no_price_and_waits_for_it():
    """The drafts look so dear that they are worth no wait; only drafting shows whether that is so."""
    lengths, dear = LengthController(), StepCosts({1: 0.005, 64: 0.0051})
    teach(lengths, 0.200)
    for _ in range(60):
        lengths.modes.with_models.of(RECORD).update(8, 8)
    full = [Candidate(lengths.modes.with_models.of(RECORD), 8)]
    assert not any(lengths.plan(batch_of(full, costs=dear)).depths)
    for at_s in range(60):
        lengths.modes.guard.begin(Way.PLAIN, ["r"], 1.0, at_s)
        lengths.modes.guard.end({"r": 1}, at_s + 1.0)
    found = lengths.plan(batch_of(full, costs=dear))
    assert found.depths == [TRIAL_TOKENS]
    assert found.worth_s == pytest.approx(2.0 * lengths.modes.with_models.costs.seconds(1, TRIAL_TOKENS))


@pytest.mark.parametrize(
    ("reads_s", "asked"),
    [((0.0, 0.0, 0.0), [1, 1, 1]), ((0.0, 0.5, 0.01), [1, 0, 1]), ((0.5, 0.2, 0.3), [0, 1, 0])],
)
def test_a_trial_asks_those_whose_text_is_read_as_soon_as_a_draft_is_made(reads_s, asked):
    own = LengthController().modes.with_models.of(RECORD)
    depths = trial_lengths([Candidate(own, 4, read_s=read_s) for read_s in reads_s], COSTS, draft_s=0.02)
    assert depths == [TRIAL_TOKENS * one for one in asked]


@pytest.mark.parametrize("prompt_rows", [0, 16])
def test_no_way_is_tried_while_prompts_wait(prompt_rows, lengths):
    teach(lengths, 0.2)
    for at_s in range(600):
        lengths.modes.guard.begin(Way.PLAIN, ["r"], 1.0, at_s)
        lengths.modes.guard.end({"r": 1}, at_s + 1.0)
    full = [Candidate(lengths.modes.with_models.of(RECORD), 8)]
    found = lengths.plan(replace(batch_of(full, costs=StepCosts({1: 0.005, 64: 0.0051})), prompt_rows=prompt_rows))
    assert found.is_trial is (prompt_rows == 0)


def test_a_wrong_draft_cost_of_models_is_corrected(lengths):
    """Drafting looks dear; only drafting shows better, even where model-free drafters pay."""
    for _ in range(30):
        lengths.modes.update([(RECORD, tree("small"), RIGHT, False)], ())
    teach(lengths, 0.9)
    found = []
    while len(found) < 5000 and found.count(Way.MODELS) < TRIAL_ROUNDS:
        found.append(plan(lengths))
    assert found.count(Way.MODELS) == TRIAL_ROUNDS
    teach(lengths, 0.004)
    assert [plan(lengths) for _ in range(9)] == [Way.MODELS] * 9


def test_each_sequence_asks_for_the_least_that_the_policy_wants(lengths):
    for _ in range(60):
        for way in (lengths.modes.with_models, lengths.modes.model_free):
            way.of(RECORD).update(4, 0)
    full, model_free = ([Candidate(way.of(RECORD), 4)] for way in (lengths.modes.with_models, lengths.modes.model_free))
    assert lengths.plan(replace(batch_of(full, None), least=2)).depths == [2]
    assert lengths.plan(replace(batch_of(full, model_free), least=2)).is_model_free


def test_the_model_free_part_of_a_tree_is_a_tree_of_its_own():
    whole = Tree([5, 6, 7, 8], [0, 0, 1, 2], [0.5, 0.4, 0.3, 0.2], [("a",), ("b", "a"), ("b",), ("b",)])
    own = whole.of({"b"})
    assert (own.tokens, own.parents) == ([6, 8], [0, 1]), "7 hangs below a token that b did not propose"
