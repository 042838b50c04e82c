"""Test CoSine's control: drafters and drafts grow while the verifier idles, and shrink once it does not."""

from app.engine.step_costs import StepCosts
from app.speculation.baselines import AGAIN, FIRST_DRAFTERS, FIRST_LENGTH, SETTLING, CosineLength
from app.speculation.draft_costs import DraftCosts
from tests.app.speculation.candidates import likely

STEP_S = 0.02


class Loop:
    """A verifier and its drafters in turn: rounds of given seconds, of which steps take STEP_S."""

    def __init__(self, drafters: int) -> None:
        self.rule, self.now_s = CosineLength(drafters), 0.0
        self.costs = StepCosts({1: STEP_S, 64: STEP_S})

    def ask(self, round_s: float, step_s: float = STEP_S) -> tuple[int, int]:
        """Let a round pass, and return drafters and length of the next."""
        self.now_s += round_s
        self.costs.correct(1, step_s)
        (depth,) = self.rule.depths({"r": likely(4)}, self.costs, DraftCosts(), self.now_s, {})
        return self.rule.drafters, depth

    def asks(self, rounds: int, round_s: float, step_s: float = STEP_S) -> list[tuple[int, int]]:
        return [self.ask(round_s, step_s) for _ in range(rounds)]


def test_an_idle_verifier_gets_more_drafters_and_a_busy_one_fewer_tokens_then_drafters() -> None:
    loop = Loop(4)
    assert [*dict.fromkeys(loop.asks(40, 0.025))][:3] == [(FIRST_DRAFTERS, 4), (3, 4), (4, 4)]
    assert [*dict.fromkeys(loop.asks(120, 0.0201))][-7:] == [(4, 4), (4, 3), (4, 2), (4, 1), (3, 1), (2, 1), (1, 1)]


def test_a_verifier_that_idles_for_a_quarter_of_the_time_is_not_busy() -> None:
    assert Loop(4).asks(60, STEP_S / 0.75)[-1] == (4, FIRST_LENGTH)


def test_a_token_that_makes_the_verifier_busier_stays() -> None:
    loop = Loop(1)
    for _ in range(80):
        loop.ask(0.06, step_s=0.006 * loop.rule.depths({"r": likely(4)}, loop.costs, DraftCosts(), loop.now_s, {})[0])
    assert loop.ask(0.06, 0.05)[1] == 8


def test_a_token_that_makes_it_wait_longer_is_taken_back_and_tried_again_later() -> None:
    """Drafting takes longer by each token, verifying does not: the idle part can only rise."""
    loop, lengths = Loop(1), [FIRST_LENGTH]
    for _ in range(4 * AGAIN):
        lengths.append(loop.ask(STEP_S + 0.004 * lengths[-1])[1])
    assert set(lengths) == {FIRST_LENGTH, FIRST_LENGTH + 1}
    assert lengths.count(FIRST_LENGTH + 1) < len(lengths) // 4
    assert [*dict.fromkeys(zip(lengths, lengths[1:], strict=False))][-1] == (FIRST_LENGTH + 1, FIRST_LENGTH)


def test_it_holds_between_the_two_bounds_and_changes_slowly() -> None:
    assert set(Loop(4).asks(50, STEP_S / 0.94)) == {(FIRST_DRAFTERS, FIRST_LENGTH)}
    counts = [drafters for drafters, _ in Loop(4).asks(40, 0.06)]
    assert counts.index(4) - counts.index(3) > SETTLING


def test_a_clock_that_was_set_back_changes_nothing() -> None:
    loop = Loop(1)
    assert set(loop.asks(30, 0.0) + loop.asks(30, -1.0)) == {(1, FIRST_LENGTH)}
