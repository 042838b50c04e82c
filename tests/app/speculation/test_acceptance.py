import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.speculation.acceptance import START, AcceptanceEstimate, AcceptanceEstimates, levels
from app.state import Tree


def chain(tokens: list[int]) -> Tree:
    return Tree(tokens, list(range(len(tokens))), [0.5] * len(tokens), [("a",)] * len(tokens))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=40), st.integers(0, 40))
def test_survival_falls_and_is_a_probability(seen: list[tuple[int, int]], depth: int) -> None:
    expectation = AcceptanceEstimate(AcceptanceEstimate())
    for drafted, accepted in seen:
        expectation.update(drafted, min(drafted, accepted))
    survival = expectation.survival(depth)
    assert len(survival) == depth
    assert survival == sorted(survival, reverse=True)
    assert all(0.0 < s < 1.0 for s in survival)


def test_learns_from_verdicts_by_depth() -> None:
    expectation = AcceptanceEstimate(AcceptanceEstimate())
    for _ in range(60):
        expectation.update(4, 2)
    one, two, three, _ = expectation.survival(4)
    assert one > 0.9 and two > 0.85 and three < 0.1


def test_a_new_sequence_starts_where_its_tenant_is() -> None:
    expectations = AcceptanceEstimates()
    for _ in range(200):
        expectations.of("old", "a").update(2, 0)
    assert expectations.of("new", "a").survival(1)[0] < 0.1
    assert expectations.of("new too", "b").survival(1)[0] > 0.5


def test_an_ended_request_teaches_its_tenant_in_bounded_memory() -> None:
    expectations = AcceptanceEstimates(max_requests=3, max_tenants=2)
    first = expectations.of("0", "a")
    assert expectations.of("0", "a") is first
    for i in range(10):
        expectations.of(str(i), str(i))
    assert len(expectations._requests) == 3 and len(expectations._tenants) == 2
    expectations.remove("9")
    expectations.remove("unknown")
    assert len(expectations._requests) == 2


def test_a_depth_that_is_not_asked_for_is_forgotten() -> None:
    expectation = AcceptanceEstimate()
    expectation.update(2, 1)
    unlucky = expectation.survival(2)
    for _ in range(300):
        expectation.update(1, 1)
    first, second = expectation.survival(2)
    assert unlucky[1] / unlucky[0] < START - 0.1
    assert second / first == pytest.approx(START, abs=0.01)


def test_levels_follow_the_main_branch_of_a_tree() -> None:
    tree = Tree([1, 2, 3, 4], [0, 0, 1, 3], [0.5] * 4, [("a",)] * 4)
    assert levels(tree, [1, 3, 4, 9]) == (3, 3)
    assert levels(tree, [1, 3, 5]) == (3, 2)
    assert levels(tree, [1, 3]) == (2, 2), "depth 3 is not known yet"
    assert levels(tree, [2, 9]) == (1, 0), "a side branch was right, but those are not counted on"
    assert levels(tree, [7]) == (1, 0)
    assert levels(Tree(), [7]) == (0, 0)


@given(st.lists(st.integers(0, 1), max_size=6), st.lists(st.integers(0, 1), max_size=6))
def test_levels_of_a_chain_are_its_common_prefix(tokens: list[int], committed: list[int]) -> None:
    drafted, accepted = levels(chain(tokens), committed)
    assert tokens[:accepted] == committed[:accepted]
    ended = accepted == min(len(tokens), len(committed))
    assert drafted == accepted + (not ended)
