"""Test the number of drafters that a round asks."""

import random
from collections import Counter

from app.speculation.drafter_count import DrafterCount
from app.state import Tree

NAMES = ("a", "b", "c", "d")
STEP_S = 0.03
TEXT = [7, 8, 9]


def tree(right: int, asked: int) -> Tree:
    """A tree of the first drafters: each has a token of its own, and the one of number `right` the right ones."""
    tokens, parents = [*range(100, 100 + asked)], [0] * asked
    proposers: list[tuple[str, ...]] = [(name,) for name in NAMES[:asked]]
    if right < asked:
        tokens, parents = [*tokens, *TEXT], [*parents, 0, asked + 1, asked + 2]
        proposers += [(NAMES[right],)] * len(TEXT)
    return Tree(tokens, parents, [0.5] * len(tokens), proposers)


def run(
    count: DrafterCount, drafter_s: float, chances: tuple[float, ...], rounds: int = 400
) -> tuple[Counter[int], float]:
    """Ask and learn; drafter i alone is right with a chance of its own. Return the counts asked, and tokens/s."""
    rng, found, tokens, seconds = random.Random(1), Counter[int](), 0, 0.0
    for _ in range(rounds):
        asked = count.asked(len(NAMES))
        (right,) = rng.choices(range(5), [*chances, 1.0 - sum(chances)])
        count.learn(NAMES[:asked], tree(right, asked), TEXT)
        count.decide(lambda n: STEP_S + n * drafter_s)
        found[asked] += 1
        tokens += 1 + 3 * (right < asked)
        seconds += STEP_S + asked * drafter_s
    return found, tokens / seconds


def test_drafters_that_cost_nothing_and_bring_something_are_all_asked() -> None:
    found, _ = run(DrafterCount(), 0.0001, (0.3, 0.1, 0.1, 0.1))
    assert found[4] > 350


def test_a_drafter_that_costs_more_than_it_brings_is_not_asked_but_in_few_trials() -> None:
    found, pace = run(DrafterCount(), 0.005, (0.5, 0.02, 0.02, 0.02))
    assert found[1] > 350 and found[4] >= 4
    assert pace > 0.97 * (1 + 3 * 0.5) / (STEP_S + 0.005)


def test_some_of_the_drafters_are_asked_where_the_next_ones_bring_nothing() -> None:
    found, _ = run(DrafterCount(), 0.004, (0.3, 0.3, 0.0, 0.0))
    assert found[2] > 300


def test_trials_find_that_more_drafters_pay_by_now() -> None:
    count = DrafterCount()
    run(count, 0.005, (0.5, 0.0, 0.0, 0.0))
    found, _ = run(count, 0.0001, (0.2, 0.2, 0.2, 0.2), 1000)
    assert found[4] > 500


def test_what_drafters_without_a_model_have_comes_with_the_first_drafter() -> None:
    count = DrafterCount()
    for _ in range(50):
        count.asked(2)
        count.learn(["a", "b"], Tree([7, 8], [0, 1], [0.5, 0.4], [("lookup", "b"), ("lookup", "b")]), TEXT)
        count.decide(lambda n: STEP_S + n * 0.003)
    assert count.usual(2) == 1


def test_one_more_node_is_tried() -> None:
    count = DrafterCount()
    run(count, 0.0001, (0.3, 0.1, 0.1, 0.1))
    assert count.asked(5) == 4
    count.decide(lambda n: STEP_S)
    assert count.asked(5) == 5
