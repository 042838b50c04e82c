"""Test when lengths are planned again behind a plan without drafts."""

from itertools import count

from app.engine.step_costs import StepCosts
from app.policy import Policy
from app.speculation.plain_spell import SHARE, PlainSpell
from tests.app.verifier.parts import parts, start


def test_a_spell_is_as_long_as_planning_is_short():
    spell = PlainSpell()
    assert not spell.lasts(0.0)
    spell.begin(4, 0.1, 0.5, 10.5)
    assert spell.lasts(10.5 + 0.49 / SHARE) and not spell.lasts(10.5 + 0.51 / SHARE)
    assert (spell.round_s(4), spell.round_s(5)) == (0.1, 0.0)


def test_a_pause_amid_a_plan_makes_no_long_spell():
    spell = PlainSpell()
    for took_s in (0.001, 5.0):
        spell.begin(1, 0.1, took_s, 5.0)
    assert not spell.lasts(5.0 + 0.0011 / SHARE)


class Ticking:
    """A clock by which each look takes a millisecond."""

    def __init__(self) -> None:
        ticks = count()
        self.time = self.monotonic = self.perf_counter = self.thread_time = lambda: next(ticks) * 1e-3


def test_nothing_is_planned_while_a_spell_lasts():
    one = parts(costs=StepCosts({1: 0.001, 2: 10.0}), clock=Ticking())
    sequences, planned = [start(one, "r", max_tokens=50)], 0
    plan = one.lengths.plan

    def counted(batch):
        nonlocal planned
        planned += 1
        return plan(batch)

    one.lengths.plan = counted
    for _ in range(1000):
        assert not one.speculation.request_drafts(sequences, Policy())
    assert 1 < planned < 50
    before = planned
    assert one.speculation.request_drafts(sequences, Policy(min_draft_tokens=1)), "limits hold at once"
    assert planned == before + 1
