"""Test what the report of `./paceline chaos` makes of its figures."""

from bench.chaos.run import Injected, with_stalls


def test_a_silence_belongs_to_the_fault_that_began_it() -> None:
    injected = [
        Injected(48.0, "half-open clients", 0.04, 0.02, 0.12),
        Injected(51.44, "freeze beat", 4.02, 0.02, 3.28),
        Injected(71.43, "full disk", 5.15, 0.51, 0.61),
    ]
    stalls = [(48.4, 58.73), (49.0, 50.0), (71.3, 77.1), (0.2, 0.9)]
    assert [one.longest_stall_s for one in with_stalls(injected, stalls)] == [10.33, 0.0, 5.8]
