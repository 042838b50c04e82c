"""Test the products' benchmark: what it reads of other programs' output, and what it makes of it."""

import pytest

from bench.cpu import compared, parse

PRINTED = """\
134.5M weights
bits equal q4: 1
f32: 1:20.1(19.8) 8:30.0(29.5)
q4_1: 1:4.2(4.1) 8:9.7(9.5)
vnni: 1:3.2 8:5.1
q4_1: 1:4.4(4.0) 8:9.9(9.6)
"""


def test_lines_of_times_are_read_and_no_others() -> None:
    found = parse(PRINTED)
    assert found["q4_1", 1] == [4.2, 4.4] and found["q4_1", 8] == [9.7, 9.9]
    assert found["vnni", 8] == [5.1]
    assert {kind for kind, _ in found} == {"f32", "q4_1", "vnni"}


def test_what_both_have_is_compared() -> None:
    found = compared({("q4_1", 1): [5.0, 4.0], ("q4_1", 2): [6.0], ("vnni", 8): [5.5]}, parse(PRINTED))
    assert set(found) == {"q4_1, 1 rows", "vnni, 8 rows"}
    assert found["q4_1, 1 rows"] == {"ms": 4.3, "ratio": pytest.approx(4.5 / 4.3, abs=1e-3)}
