"""Test the usual comparison: what its arms are given, and in which order."""

from functools import partial
from itertools import combinations

import pytest

from bench.run import at_concurrency, lines
from bench.systems import Run


@pytest.mark.parametrize("repeats", [2, 4, 6])
def test_no_arm_precedes_another_more_often(repeats: int) -> None:
    """What a repeat does to a machine, or to a cache, falls on both arms of a pair alike."""
    ran: list[str] = []

    def arm(name: str, prompts: list[str], at_once: int) -> Run:
        assert (len(prompts), at_once) == (12, 4)
        ran.append(name)
        return Run(1.0, ((1, 2),) * len(prompts), (0.1,) * len(prompts), 2 * len(prompts))

    names = ("transformers", "local_on", "local_off", "server_on", "server_off")
    at_concurrency({name: partial(arm, name) for name in names}, 4, repeats, 3)
    turns = [ran[i : i + len(names)] for i in range(0, len(ran), len(names))]
    assert len(turns) == repeats
    for one, other in combinations(names, 2):
        assert sum(turn.index(one) < turn.index(other) for turn in turns) == repeats // 2


@pytest.mark.parametrize(("repeats", "bound"), [(1, "(one pair: no bound)"), (2, "(at least 1.00, 95 %)")])
def test_the_table_has_each_arm_and_no_bound_of_one_pair(repeats: int, bound: str) -> None:
    run = Run(2.0, ((1, 2),), (0.1,), 2)
    found = at_concurrency({name: lambda _, at_once: run for name in ("local_on", "local_off")}, 1, repeats, 1)
    assert list(lines({"concurrency": {1: found}})) == [
        "\n1 at once      tokens/s   first token",
        "  local_on          1.0     0.100 s",
        "  local_off         1.0     0.100 s",
        f"  local_on / local_off: 1.00 {bound}",
    ]
